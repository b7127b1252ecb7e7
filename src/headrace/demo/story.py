"""The steps of the demonstration, which are printed to an `Output`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import TargetJobs
from headrace.demo.orders import COLUMNS, PRIMARY_KEY, EventClock, OrderBook
from headrace.demo.processes import Child, Children
from headrace.demo.proof import (
    Difference,
    Statistic,
    Total,
    WindowKey,
    compare,
    current_totals,
    read_all,
    recompute,
    sink_content,
    totals_content,
)
from headrace.demo.script import (
    INSTANCE,
    SINK,
    SINK_COLUMNS,
    SINK_KEY,
    SOURCE,
    TOTALS,
    TOTALS_COLUMNS,
    TOTALS_KEY,
    script,
    store_script,
    totals_script,
)
from headrace.demo.view import Snapshot, as_facts, as_line, as_picture
from headrace.errors import HeadraceError, OptionError
from headrace.spark.checkpoint import stored_query_id

if TYPE_CHECKING:
    from headrace.cli.output import LiveView, Output
    from headrace.ports import Store, Table

USERS = ("alice", "bob")
TUNNEL, TOTALS_TUNNEL, PROOF_TUNNEL = "order-statistics", "order-totals", "proof"
FIRST_ORDERS = 1000
# Without Java's optimizing compiler a driver starts in half the time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The limit for slow machines. Each wait ends as soon as its condition holds.
DEADLINE_SECONDS = 300.0
END_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """The result of the demonstration.

    Attributes:
        differences: windows with different statistics in the sink and in the recomputation.
        users: the number of users in the totals, and ``orders`` that of the orders that exist in the end.
        totals_differences: users with different totals in the table of totals and over the orders that exist.
        orphaned_stages: the number of staged row sets in the store that no batch will publish; None if the store is
            not the demonstration's own.
        published_batch: the batch of the job's marker in the store.
        killed_in_batch: the batch that was running when the driver was killed; None between two batches.
        clean_stop: whether the driver ended after SIGTERM, without SIGKILL.
    """

    windows: int
    events: int
    deletions: int
    differences: list[Difference[WindowKey, Statistic]]
    users: int
    orders: int
    totals_differences: list[Difference[str, Total]]
    batches_before_kill: int
    batches_after_kill: int
    killed_in_batch: int | None
    published_batch: int | None
    orphaned_stages: int | None
    clean_stop: bool

    @property
    def proven(self) -> bool:
        differ = self.differences or self.totals_differences
        return not differ and not self.orphaned_stages and self.windows > 0 and self.users > 0


class Story:
    """One run of the demonstration in a directory.

    Args:
        directory: the directory for all files. It must be empty or missing.
        seconds: how long the driver runs after its first batch, before the kill and again after it.
        store: the address of an existing store for the tables; by default, an embedded store in the directory.
        keep: whether tables and tunnels stay in an existing store.
        with_page: serve the web page meanwhile; in a terminal, also after the end, until an interrupt.
    """

    def __init__(
        self,
        directory: Path,
        output: Output,
        *,
        seconds: float,
        store: str | None = None,
        keep: bool = True,
        with_page: bool = False,
    ) -> None:
        if directory.exists() and any(directory.iterdir()):
            raise OptionError("the directory for the demonstration must be empty", received=str(directory))
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory.resolve()
        self._output = output
        self._seconds = seconds
        self._store = store
        self._keep = keep
        self._with_page = with_page
        self._created: list[str] = []
        self._begin = time.monotonic()
        self._driver_state = "starting"
        self._checkpoint = self.directory / "checkpoint" / "job1"
        self._totals_checkpoint = self.directory / "checkpoint" / "totals"
        self._script = self.directory / "job.sql"
        self._children = Children()

    def run(self, report: Callable[[Outcome], None]) -> Outcome:
        """Run all steps. At the end, also after an error, all child processes are killed.

        Args:
            report: shows the outcome, before the web page ends.
        """
        import headrace

        place = str(self.directory / INSTANCE) if self._store is None else self._store
        with (
            headrace.open(place, create=self._store is None) as store,
            self._dropping(store),
            self._children,
            self._page(store),
        ):
            self._prepare(store)
            with self._output.live() as view:
                outcome = self._live(store, view)
            self._output.event(
                f"The sink has {outcome.windows} windows; {len(outcome.differences)} differ from the recomputation.\n"
                f"The totals have {outcome.users} users; {len(outcome.totals_differences)} differ from the "
                f"{outcome.orders} orders that exist.",
                event="proof",
                proven=outcome.proven,
                **asdict(outcome),
            )
            report(outcome)
            if self._with_page and sys.stdout.isatty():
                self._output.event("The page stays until you press Ctrl-C.", event="page-stays")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
        return outcome

    # -- the steps --------------------------------------------------------------------------------------

    @contextmanager
    def _dropping(self, store: Store) -> Iterator[None]:
        """At the end of the block, drop the tables created in an existing store, unless the user keeps them."""
        try:
            yield
        finally:
            if self._store is not None and not self._keep:
                if TOTALS in self._created:
                    job = TargetJobs(store).find(TOTALS)
                    self._created += () if job is None else job.state_tables
                for name in self._created:
                    store.drop_table(name, missing_ok=True)

    @contextmanager
    def _page(self, store: Store) -> Iterator[None]:
        """During the block, serve the web page if it is wanted."""
        if not self._with_page:
            yield
            return
        from headrace.ui.server import DEFAULT_PORT, UiThread

        try:
            page = UiThread(store, self.directory, DEFAULT_PORT)
        except OptionError:
            # Another page has the port.
            page = UiThread(store, self.directory, 0)
        self._output.event(f"The page is at {page.address}", event="page", address=page.address)
        try:
            yield
        finally:
            page.stop()

    def _prepare(self, store: Store) -> None:
        source = self._create(store, SOURCE, COLUMNS, PRIMARY_KEY, pre_images=True)
        self._create(store, SINK, SINK_COLUMNS, SINK_KEY)
        self._create(store, TOTALS, TOTALS_COLUMNS, TOTALS_KEY)
        self._clock = EventClock(time.time())
        book = OrderBook("carol", seed=0)
        source.put(book.place(FIRST_ORDERS, self._clock.now_ms()))
        tunnel = store.create_tunnel(SOURCE, TUNNEL)
        # No row is written between the calls, so all tunnels begin with the same rows.
        store.create_tunnel(SOURCE, TOTALS_TUNNEL)
        store.create_tunnel(SOURCE, PROOF_TUNNEL)
        text = (
            script(endpoint=self.directory, tunnel_id=tunnel.id, checkpoint=self._checkpoint)
            if self._store is None
            else store_script(store=store.url, tunnel=TUNNEL, checkpoint=self._checkpoint)
        )
        text += totals_script(store=store.url, tunnel=TOTALS_TUNNEL, checkpoint=self._totals_checkpoint)
        self._script.write_text(text)
        self._say(f"Created a table with {FIRST_ORDERS} orders and three tunnels in {store.url}", "prepared")
        self._output.event(f"\n{text}", event="script", path=str(self._script), text=text)

    def _create(
        self, store: Store, name: str, columns: Mapping[str, str], key: Sequence[str], **options: bool
    ) -> Table:
        table = store.create_table(name, columns, key, **options)
        self._created.append(name)
        return table

    def _live(self, store: Store, view: LiveView) -> Outcome:
        writers = [self._start_writer(store, user, seed) for seed, user in enumerate(USERS, start=1)]
        self._say(f"Started {len(writers)} writers, which insert, update and delete orders.", "writers-started")
        driver = self._start_driver()
        self._say("Started the driver: headrace run job.sql", "driver-started")
        watch = _Watch(self, store, view, writers)
        watch.until(
            lambda: self.last_committed() is not None and _last_batch(self._totals_checkpoint / "commits") is not None,
            "the first batch of both streams",
            driver,
        )
        self._driver_state = "running"
        until = time.monotonic() + self._seconds
        watch.until(lambda: time.monotonic() > until and self._committed() >= 3, "three batches", driver)
        watch.until(lambda: self._running_batch() is not None, "a batch that is running", driver, look_every=0.002)
        killed = driver.kill()
        # Read after the kill, because the batch can have ended just before it.
        killed_in = self._running_batch()
        self._driver_state = "killed"
        before = self._committed()
        watch.look()
        self._say(
            f"Killed the driver in the middle of batch {killed_in}: SIGKILL to its {killed} processes."
            if killed_in is not None
            else f"Killed the driver: SIGKILL to its {killed} processes.",
            "driver-killed",
        )
        driver = self._start_driver()
        self._driver_state = "starting"
        self._say("Started the driver again.", "driver-restarted")
        watch.until(lambda: self._committed() > before, "the first batch after the restart", driver)
        self._driver_state = "running"
        again = time.monotonic() + self._seconds
        watch.until(lambda: time.monotonic() > again and self._committed() >= before + 3, "three more batches", driver)
        watch.writers = []
        for writer in writers:
            writer.end(END_SECONDS)
        self._say("Stopped the writers; the lag has to fall to 0.", "writers-stopped")
        watch.until(lambda: _lag(store) == 0, "a lag of 0", driver)
        self._driver_state = "stopping"
        watch.look()
        clean = driver.end(END_SECONDS) == 0
        self._driver_state = "stopped"
        watch.look()
        self._say("Stopped the driver. Computing the results again from the log and the table.", "driver-stopped")
        return self._prove(store, before, killed_in, clean)

    def _prove(self, store: Store, before: int, killed_in: int | None, clean: bool) -> Outcome:
        recomputed = recompute(read_all(store.tunnel(PROOF_TUNNEL)))
        in_sink, totals = sink_content(store.table(SINK)), totals_content(store.table(TOTALS))
        now = current_totals(store.table(SOURCE))
        publisher = store.publisher(stored_query_id(str(self._checkpoint), store) or "", SINK)
        return Outcome(
            windows=len(in_sink),
            events=recomputed.events,
            deletions=recomputed.deletions,
            differences=compare(in_sink, recomputed.windows),
            users=len(totals),
            orders=sum(orders for orders, _, _ in now.values()),
            totals_differences=compare(totals, now),
            batches_before_kill=before,
            batches_after_kill=self._committed() - before,
            killed_in_batch=killed_in,
            published_batch=next((n for n in range(self._committed(), -1, -1) if publisher.published(n)), None),
            orphaned_stages=self._orphaned_stages(),
            clean_stop=clean,
        )

    def _orphaned_stages(self) -> int | None:
        from headrace.stores.embedded.connection import Database

        if self._store is not None:
            return None
        return int(Database(self.directory / INSTANCE).query("SELECT count(*) FROM stage")[0][0])

    # -- child processes, and the job's checkpoint --------------------------------------------------------

    def _start_writer(self, store: Store, user: str, seed: int) -> Child:
        arguments = ["-m", "headrace.demo.orders", store.url, SOURCE, user, str(seed), str(self._clock.start)]
        return self._children.start(f"writer of {user}'s orders", arguments, self.directory / f"writer-{user}.log")

    def _start_driver(self) -> Child:
        arguments = ["-m", "headrace.cli.main", "run", str(self._script), "--workspace", str(self.directory)]
        arguments += ["--master", "local[2,4]", "--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA}", "--json"]
        return self._children.start("driver", arguments, self.directory / "driver.log")

    def last_committed(self) -> int | None:
        """Return the last batch in the commit log of the job's checkpoint; None before the first."""
        return _last_batch(self._checkpoint / "commits")

    def _committed(self) -> int:
        last = self.last_committed()
        return 0 if last is None else last + 1

    def _running_batch(self) -> int | None:
        """Return the batch that Spark has planned and not completed."""
        planned = _last_batch(self._checkpoint / "offsets")
        last = self.last_committed()
        return planned if planned is not None and (last is None or planned > last) else None

    # -- output -----------------------------------------------------------------------------------------

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def snapshot(self, store: Store) -> Snapshot:
        """Return the current state."""
        description = store.table(SOURCE).describe()
        return Snapshot(
            seconds=self.seconds(),
            driver=self._driver_state,
            changes=sum(partition.next for partition in description.partitions) if description.partitions else None,
            orders=description.rows,
            lag=_lag(store),
            batch=self.last_committed(),
            windows=sink_content(store.table(SINK)),
            totals=totals_content(store.table(TOTALS)),
        )

    def _say(self, text: str, step: str) -> None:
        self._output.event(text, event="step", step=step, seconds=round(self.seconds(), 1), text=text)


class _Watch:
    """Waits for conditions, and shows the current state in the meantime."""

    def __init__(self, story: Story, store: Store, view: LiveView, writers: list[Child]) -> None:
        self._story = story
        self._store = store
        self._view = view
        self._next_look = 0.0
        self.writers = writers

    def until(self, condition: Callable[[], bool], what: str, driver: Child, *, look_every: float = 0.1) -> None:
        """Wait for a condition while driver and writers run.

        Raises:
            HeadraceError: a process ended, or the condition did not hold within the deadline.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise HeadraceError(f"{what} did not happen within {DEADLINE_SECONDS:.0f} s")
            for child in (driver, *self.writers):
                child.check()
            if time.monotonic() >= self._next_look:
                self.look()
            time.sleep(look_every)

    def look(self) -> None:
        """Show the current state."""
        snapshot = self._story.snapshot(self._store)
        self._view.show(as_line(snapshot), as_picture(snapshot), **as_facts(snapshot))
        self._next_look = time.monotonic() + self._view.seconds_between


def _lag(store: Store) -> int | None:
    """Return the number of changes that the slower stream has not committed; None if its tunnel does not know it."""
    lags = [store.tunnel(name).describe().backlog_rows for name in (TUNNEL, TOTALS_TUNNEL)]
    known = [lag for lag in lags if lag is not None]
    return max(known) if len(known) == len(lags) else None


def _last_batch(log: Path) -> int | None:
    """Return the highest batch in one of the logs of a checkpoint."""
    try:
        return max((int(file.name) for file in log.iterdir() if file.name.isdigit()), default=None)
    except FileNotFoundError:
        return None

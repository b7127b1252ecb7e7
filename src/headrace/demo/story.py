"""The steps of the demonstration, which are printed to an `Output`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    totals_script,
)
from headrace.demo.view import Snapshot, as_facts, as_line, as_picture
from headrace.errors import HeadraceError, OptionError
from headrace.spark.checkpoint import stored_query_id

if TYPE_CHECKING:
    from headrace.cli.output import LiveView, Output
    from headrace.ports import Store

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
        orphaned_stages: the number of staged row sets in the store that no batch will publish.
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
    orphaned_stages: int
    clean_stop: bool

    @property
    def proven(self) -> bool:
        differ = self.differences or self.totals_differences
        return not differ and self.orphaned_stages == 0 and self.windows > 0 and self.users > 0


class Story:
    """One run of the demonstration in a directory.

    Args:
        directory: the directory for all files. It must be empty or missing.
        seconds: how long the driver runs after its first batch, before the kill and again after it.
    """

    def __init__(self, directory: Path, output: Output, *, seconds: float) -> None:
        if directory.exists() and any(directory.iterdir()):
            raise OptionError("the directory for the demonstration must be empty", received=str(directory))
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory.resolve()
        self._output = output
        self._seconds = seconds
        self._begin = time.monotonic()
        self._driver_state = "starting"
        self._checkpoint = self.directory / "checkpoint" / "job1"
        self._script = self.directory / "job.sql"
        self._children = Children()

    def run(self) -> Outcome:
        """Run all steps. At the end, also after an error, all child processes are killed."""
        import headrace

        with headrace.open(str(self.directory / INSTANCE), create=True) as store, self._children:
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
        return outcome

    # -- the steps --------------------------------------------------------------------------------------

    def _prepare(self, store: Store) -> None:
        source = store.create_table(SOURCE, COLUMNS, PRIMARY_KEY, pre_images=True)
        store.create_table(SINK, SINK_COLUMNS, SINK_KEY)
        store.create_table(TOTALS, TOTALS_COLUMNS, TOTALS_KEY)
        self._clock = EventClock(time.time())
        book = OrderBook("carol", seed=0)
        source.put(book.place(FIRST_ORDERS, self._clock.now_ms()))
        tunnel = store.create_tunnel(SOURCE, TUNNEL)
        # No row is written between the calls, so all tunnels begin with the same rows.
        store.create_tunnel(SOURCE, TOTALS_TUNNEL)
        store.create_tunnel(SOURCE, PROOF_TUNNEL)
        text = script(endpoint=self.directory, tunnel_id=tunnel.id, checkpoint=self._checkpoint)
        text += totals_script(
            store=self.directory / INSTANCE, tunnel=TOTALS_TUNNEL, checkpoint=self._checkpoint.with_name("totals")
        )
        self._script.write_text(text)
        self._say(f"Created a store with {FIRST_ORDERS} orders and two tunnels in {self.directory}", "prepared")
        self._output.event(f"\n{text}", event="script", path=str(self._script), text=text)

    def _live(self, store: Store, view: LiveView) -> Outcome:
        writers = [self._start_writer(store, user, seed) for seed, user in enumerate(USERS, start=1)]
        self._say(f"Started {len(writers)} writers, which insert, update and delete orders.", "writers-started")
        driver = self._start_driver()
        self._say("Started the driver: headrace run job.sql", "driver-started")
        watch = _Watch(self, store, view, writers)
        watch.until(lambda: self.last_committed() is not None, "the first batch", driver)
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
        from headrace.stores.embedded.connection import Database

        recomputed = recompute(read_all(store.tunnel(PROOF_TUNNEL)))
        in_sink, totals = sink_content(store.table(SINK)), totals_content(store.table(TOTALS))
        source = store.table(SOURCE)
        database = Database(self.directory / INSTANCE)
        job = stored_query_id(str(self._checkpoint), store)
        markers = database.query("SELECT batch FROM marker WHERE job = ?", (job,))
        stages = database.query("SELECT count(*) FROM stage")
        return Outcome(
            windows=len(in_sink),
            events=recomputed.events,
            deletions=recomputed.deletions,
            differences=compare(in_sink, recomputed.windows),
            users=len(totals),
            orders=source.describe().rows or 0,
            totals_differences=compare(totals, current_totals(source)),
            batches_before_kill=before,
            batches_after_kill=self._committed() - before,
            killed_in_batch=killed_in,
            published_batch=max((int(row[0]) for row in markers), default=None),
            orphaned_stages=int(stages[0][0]),
            clean_stop=clean,
        )

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
            changes=sum(partition.next for partition in description.partitions),
            orders=description.rows or 0,
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

"""Followed queries over one tunnel of several tables: every state of a target is that of one state of the store."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.sources import ScanFrames, sources
from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.postgres.tunnels import stored_tunnels
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH, thorough
from tests.conformance import serving
from tests.spark.followed_histories import prepare
from tests.spark.following import Following, scan, view_rows
from tests.spark.test_following_kills import killing
from tests.spark_session import processes_with

OWNERS, START, SHARED = 8, 1000, "bank"
STORES = ["embedded", "postgres"]
KILLS = [
    "rows-read",
    "end-recorded",
    "published",
    *(["rows-staged", "rows-written", "marker-written"] if THOROUGH else []),
]
# Two columns have the same names in two tables, with other types.
COLUMNS = {
    "accounts": ({"id": "long", "owner": "string", "amount": "long"}, "id"),
    "wallets": ({"owner": "string", "amount": "decimal(10,0)", "note": "string"}, "owner"),
    "owners": ({"owner": "string", "region": "string", "id": "long"}, "owner"),
}
BY_REGION = """
    SELECT o.region, count(*) AS n, sum(a.amount + w.amount) AS total
    FROM owners o JOIN accounts a ON a.owner = o.owner JOIN wallets w ON w.owner = o.owner GROUP BY o.region
"""
REGIONS = {"region": "string", "n": "long", "total": "decimal(38,0)"}

Rows = Mapping[str, Mapping[Any, dict[str, Any]]]


class Bank:
    """Transactions over three tables. Those of `move` do not change the sum of all amounts."""

    def __init__(self, store: Store, seed: int = 1) -> None:
        self.store, self.random, self._batch = store, random.Random(seed), 0
        self._publisher = store.publisher("bank")
        for name, (columns, key) in COLUMNS.items():
            table = store.create_table(name, columns, key)
            table.set_options(pre_images=True)
        names = [f"o{number}" for number in range(OWNERS)]
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {
            "accounts": {n: {"id": n, "owner": name, "amount": START} for n, name in enumerate(names)},
            "wallets": {name: {"owner": name, "amount": START, "note": "x"} for name in names},
            "owners": {name: {"owner": name, "region": f"r{n % 3}", "id": n} for n, name in enumerate(names)},
        }
        self.states = list[dict[str, tuple[int, int]]]()
        self._commit({(name, key) for name, rows in self.rows.items() for key in rows})

    def move(self, *, count: int = 3) -> None:
        """Move amounts between rows of two tables, and owners between regions, in one transaction."""
        changed = set()
        for _ in range(count):
            amount = self.random.randint(1, 50)
            account, wallet = self.random.randrange(OWNERS), f"o{self.random.randrange(OWNERS)}"
            self.rows["accounts"][account]["amount"] -= amount
            self.rows["wallets"][wallet]["amount"] += amount
            changed |= {("accounts", account), ("wallets", wallet)}
        if self.random.random() < 0.5:
            owner = f"o{self.random.randrange(OWNERS)}"
            self.rows["owners"][owner]["region"] = f"r{self.random.randrange(4)}"
            changed.add(("owners", owner))
        self._commit(changed)

    def change(self) -> None:
        """Put and delete rows of some tables at random, in one transaction."""
        changed = set()
        for name in self.random.sample(list(COLUMNS), self.random.randint(1, 3)):
            rows = self.rows[name]
            for number in self.random.sample(range(OWNERS + 4), self.random.randint(1, 5)):
                owner = f"o{number}"
                key = number if name == "accounts" else owner
                if rows.pop(key, None) is None or self.random.random() < 0.6:
                    own = f"o{self.random.randrange(OWNERS)}" if name == "accounts" else owner
                    region, amount = f"r{self.random.randrange(4)}", self.random.randint(-99, 99)
                    every = {"id": number, "owner": own, "amount": amount, "note": None, "region": region}
                    rows[key] = {column: every[column] for column in COLUMNS[name][0]}
                changed.add((name, key))
        self._commit(changed)

    def moves(self, transactions: int) -> None:
        for _ in range(transactions):
            self.move()

    def _commit(self, changed: set[tuple[str, Any]]) -> None:
        writes = []
        for name, (_, key) in COLUMNS.items():
            schema = self.store.table(name).schema.arrow
            keys = sorted(value for table, value in changed if table == name)
            puts = [self.rows[name][value] for value in keys if value in self.rows[name]]
            deletes = [{key: value} for value in keys if value not in self.rows[name]]
            for change, rows, columns in (
                (RowChange.PUT, puts, schema),
                (RowChange.DELETE, deletes, pa.schema([schema.field(key)])),
            ):
                if rows:
                    batch = pa.RecordBatch.from_pylist(rows, columns)
                    staged = self._publisher.stage(self._batch, [batch], table=name, change=change)
                    writes.append(Write(name, change, tuple(staged)))
        self._publisher.publish(self._batch, writes)
        self._batch += 1
        self.states.append(by_region(self.rows))


def by_region(rows: Rows) -> dict[str, tuple[int, int]]:
    """Return what `BY_REGION` gives."""
    counts, totals = Counter[str](), Counter[str]()
    for account in rows["accounts"].values():
        owner, wallet = (rows[name].get(account["owner"]) for name in ("owners", "wallets"))
        if owner is not None and wallet is not None:
            counts[owner["region"]] += 1
            totals[owner["region"]] += account["amount"] + wallet["amount"]
    return {region: (count, totals[region]) for region, count in counts.items()}


class Published:
    """A store with the target of `BY_REGION`, and a log of its states."""

    def __init__(self, directory: Path) -> None:
        self.store = headrace.open(directory / "target", create=True, synchronous="off")
        self.store.create_table("totals", REGIONS, "region", pre_images=True)
        self._log = self.store.create_tunnel("totals", "log", kind="Stream")
        self._state: dict[str, tuple[int, int]] = {}

    def states(self) -> list[dict[str, tuple[int, int]]]:
        """Return the states of the target that were published since the last call, in their order."""
        found, version = [], None
        changes = [change for batch in self._log.consume(idle="stop") for change in batch.to_arrow().to_pylist()]
        for change in sorted(changes, key=lambda change: change["_commit_version"]):
            if version not in (None, change["_commit_version"]):
                found.append(dict(self._state))
            version = change["_commit_version"]
            if change["_change_type"] == "delete":
                del self._state[change["region"]]
            elif change["_change_type"] != "update_preimage":
                self._state[change["region"]] = (change["n"], int(change["total"]))
        return found if version is None else [*found, dict(self._state)]


@pytest.fixture(params=STORES)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    if request.param == "embedded":
        with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
            yield Bank(store)
        return
    with headrace.open(serving.postgres_database()) as store:
        yield Bank(store)
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Published]:
    found = Published(tmp_path)
    with found.store:
        yield found


def follow(spark: SparkSession, bank: Bank, published: Published, directory: Path, **options: Any) -> Following:
    return Following(
        spark, bank.store, BY_REGION, list(COLUMNS), "totals", directory, published.store, options, together=SHARED
    )


def check_states(found: Sequence[object], states: Sequence[object]) -> None:
    """Check that published states are states of the store, in their order."""
    at = 0
    for each in found:
        assert each in states[at:], (each, at)
        at = states.index(each, at)


def test_every_published_state_is_one_state_of_the_store_while_writers_go_on(
    spark: SparkSession, bank: Bank, published: Published, tmp_path: Path
) -> None:
    prepare(spark)
    with follow(spark, bank, published, tmp_path, maxRowsPerTrigger=12) as query:
        bank.move()
        query.start()
        first = len(bank.states) - 1
        # Base data has the tables of one moment, also if it is read in several batches while others write.
        writer = threading.Thread(target=bank.moves, args=(6,))
        writer.start()
        query.advance()
        writer.join()
        query.advance()
        found = published.states()
        begin = found.index(bank.states[first])
        # 24 rows of base data, at most 12 in a batch.
        assert begin <= 3
        assert sum(total for _, total in found[0].values()) != 2 * OWNERS * START
        check_states(found[begin:], bank.states[first:])
        assert found[-1] == bank.states[-1]
        for number in range(3):
            bank.moves(1 + number)
            query.advance()
            found = published.states()
            check_states(found, bank.states)
            assert {sum(total for _, total in each.values()) for each in found} == {2 * OWNERS * START}
        # One transaction that exceeds the limit is one batch.
        bank.move(count=40)
        query.advance()
        assert published.states() == [bank.states[-1]]
        query.restart()
        bank.move()
        query.advance()
        assert published.states() == [bank.states[-1]]
        assert query.query is not None
        assert len(query.query.recentProgress[-1]["sources"]) == 1


@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
def test_base_data_of_pieces_is_one_state_once_the_stream_has_passed_the_last_of_them(
    spark: SparkSession, bank: Bank, published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    # As tables of more than 50,000 rows: each piece is read when its batch begins.
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    with follow(spark, bank, published, tmp_path, maxRowsPerTrigger=8) as query:
        bank.store.create_tunnel(list(COLUMNS), SHARED)
        query.start()
        writer = threading.Thread(target=bank.moves, args=(5,))
        writer.start()
        query.advance()
        writer.join()
        bank.move()
        query.advance()
        found = published.states()
        consistent = [each in bank.states for each in found]
        # From some batch on, all are right. After the writer, the base data is certainly passed.
        assert consistent == sorted(consistent)
        assert found[-1] == bank.states[-1]


@pytest.mark.parametrize("bank", STORES if THOROUGH else ["embedded"], indirect=True)
def test_states_of_random_histories_are_those_of_the_store(
    spark: SparkSession, bank: Bank, published: Published, tmp_path: Path
) -> None:
    prepare(spark)
    with follow(spark, bank, published, tmp_path) as query:
        query.advance()
        assert published.states() == [bank.states[-1]]
        for step in range(thorough(25)):
            query.options = {"maxRowsPerTrigger": bank.random.choice([1, 5, 1000])}
            since = len(bank.states) - 1
            for _ in range(bank.random.randint(1, 4)):
                bank.change()
            if step % 4 == 3:
                query.restart()
            query.advance()
            found = published.states()
            check_states(found, bank.states[since:])
            assert not found or found[-1] == bank.states[-1]


@pytest.mark.parametrize("bank", ["embedded"], indirect=True)
def test_a_query_that_is_killed_at_any_step_continues_with_whole_transactions(
    spark: SparkSession, bank: Bank, published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    with follow(spark, bank, published, tmp_path) as query:
        query.advance()
        for point in KILLS:
            bank.moves(2)
            # Spark repeats a task. Once the end is recorded, it reads up to there.
            fails = nullcontext() if point == "end-recorded" else pytest.raises(StreamingQueryException)
            if point in ("rows-read", "end-recorded"):
                query.restart()
                with processes_with(spark, **{failpoints.VARIABLE: f"{point}:1"}), fails:
                    query.advance()
            else:
                with monkeypatch.context() as patch:
                    patch.setattr(failpoints, "reach", killing(point))
                    with fails:
                        query.advance()
            query.restart()
            # They are in a batch of their own, after the repeated one.
            bank.move()
            query.advance()
        check_states(published.states(), bank.states)
        assert published.states() == []
        assert query.advance() == query.expected()


@pytest.mark.parametrize("bank", ["embedded"], indirect=True)
def test_queries_of_all_kinds_share_a_tunnel_with_others_and_with_themselves(
    spark: SparkSession, bank: Bank, tmp_path: Path
) -> None:
    prepare(spark)
    store = bank.store
    store.create_table("labels", {"region": "string", "label": "string"}, "region", pre_images=True)
    store.table("labels").put([{"region": f"r{number}", "label": f"R{number}"} for number in range(3)])
    queries = {
        # Signed rows of one scan, in groups and without.
        "sums": ("SELECT owner, sum(amount) AS s FROM accounts GROUP BY 1", {"owner": "string", "s": "long"}, "owner"),
        "large": ("SELECT id, amount FROM accounts WHERE amount > 990", {"id": "long", "amount": "long"}, "id"),
        # Signed rows of two scans of one table.
        "both": (
            "SELECT 'a' AS t, id, amount FROM accounts UNION ALL SELECT 'b', id, -amount FROM again WHERE amount > 990",
            {"t": "string", "id": "long", "amount": "long"},
            ["t", "id"],
        ),
        # Another tunnel beside the shared one, and again two scans of one table.
        "mixed": (
            "SELECT a.id, l.label, w.amount AS mine, v.amount AS yours FROM accounts a "
            "LEFT JOIN owners o ON o.owner = a.owner LEFT JOIN labels l ON l.region = o.region "
            "JOIN wallets w ON w.owner = a.owner JOIN others v ON v.owner = concat('o', CAST(7 - a.id AS string))",
            {"id": "long", "label": "string", "mine": "decimal(10,0)", "yours": "decimal(10,0)"},
            "id",
        ),
    }  # fmt: skip
    with ExitStack() as stack:
        running = {}
        for name, (sql, columns, key) in queries.items():
            store.create_table(name, columns, key)
            store.create_tunnel(list(COLUMNS), name)
            store.create_tunnel("labels", name)
            one = spark.readStream.format("headrace").options(store=store.url, tunnel=name, readAs="table")
            scans = {table: one.load(table) for table in COLUMNS} | {
                "others": one.load("wallets"),
                "again": one.load("accounts"),
            }
            scans["labels"] = scan(spark, store, store.tunnel(name, "labels").id)
            stream = headrace.follow(
                spark, sql, scans=scans, store=store.url, table=name, checkpoint=str(tmp_path / "checkpoints" / name)
            )
            running[name] = stream.start()
            stack.callback(running[name].stop)
        for number in range(2):
            for table in (*COLUMNS, "labels"):
                for name in (table, *{"wallets": ["others"], "accounts": ["again"]}.get(table, [])):
                    view_rows(spark, store, table, name)
            for name, (sql, *_) in queries.items():
                running[name].processAllAvailable()
                expected = sorted(tuple(row) for row in spark.sql(sql).collect())
                assert [tuple(row.values()) for row in store.table(name).scan().read_all().to_pylist()] == expected, (
                    name
                )
            bank.move()
            store.table("labels").put({"region": f"r{number}", "label": "new"})
        assert [len(query.recentProgress[-1]["sources"]) for query in running.values()] == [1, 1, 1, 2]


@pytest.mark.parametrize("bank", ["embedded"], indirect=True)
def test_scans_that_cannot_share_a_stream_are_refused(spark: SparkSession, bank: Bank, tmp_path: Path) -> None:
    store = bank.store
    store.create_tunnel(list(COLUMNS), SHARED)

    def load(table: str | None = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format("headrace").options(store=store.url, tunnel=SHARED, readAs="table", **options)
        return reader.load(table)

    frames = ScanFrames.of("Accounts", load())
    assert frames.rows.columns[:3] == ["id", "owner", "amount"]
    found = FollowedScan.of("Accounts", *frames)
    assert (found.table, found.key, found.tunnel and found.tunnel.name) == ("accounts", ("id",), SHARED)
    other = FollowedScan.of("w", *ScanFrames.of("w", load("wallets", maxRowsPerTrigger=5)))
    with pytest.raises(OptionError, match=r"tunnel 'bank' have different limits.*maxRowsPerTrigger=5"):
        sources([found, other])
    with pytest.raises(OptionError, match=r"scan 'x' does not say which table.*accounts, wallets, owners"):
        ScanFrames.of("x", load())
    with pytest.raises(OptionError, match="not one of a reader as it is"):
        FollowedScan.of("accounts", *ScanFrames.of("accounts", load().where("_table <> 'owners'")))
    store.create_table("totals", REGIONS, "region")
    scans = dict.fromkeys(("accounts", "owners"), load()) | {"wallets": load("wallets")}
    store.table("wallets").add_columns({"more": "string"})
    scans["wallets"] = load("wallets")
    with pytest.raises(
        OptionError, match="table 'wallets' has changed between the loads of two scans of tunnel 'bank'"
    ):
        headrace.follow(spark, BY_REGION, scans=scans, store=store.url, table="totals", name="again").start()
    for history in (False, True):
        mirror = headrace.mirror(
            spark,
            source=store.url,
            table="accounts",
            tunnel=SHARED,
            to=store.url,
            to_table="c",
            name="m",
            history=history,
        )
        with pytest.raises(UnsupportedError, match=r"reads a tunnel of its table alone.*leave out option tunnel"):
            mirror.start()


@pytest.mark.parametrize("bank", ["embedded"], indirect=True)
def test_a_checkpoint_belongs_to_its_tunnel(
    spark: SparkSession, bank: Bank, published: Published, tmp_path: Path
) -> None:
    prepare(spark)
    with follow(spark, bank, published, tmp_path) as query:
        query.advance()
        query.restart()
        query.together = "another"
        with pytest.raises(OptionError, match="computed with another tunnel of owners, accounts, wallets"):
            query.start()
        query.together = None
        with pytest.raises(OptionError, match="computed with another tunnel of owners, accounts, wallets"):
            query.start()

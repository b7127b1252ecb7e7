"""The jobs that fill tables: each target has one, and it notices that its tables were dropped."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.batches.sinks.jobs import MIRROR, TargetJob, TargetJobs, is_changed
from headrace.errors import AlreadyExistsError, DataLossError, HeadraceError, OptionError
from headrace.ports import Claim, Store

COLUMNS = {"user": "string", "n": "long"}
SETTINGS = {"spark.sql.session.timeZone": "UTC"}


def query(job: str, settings: Mapping[str, str] = SETTINGS, *, overwrite: bool = False) -> TargetJob:
    return TargetJob("totals", job, {"query": "hash"}, settings=settings, overwrite=overwrite)


def publish(store: Store, job: str, batch: int, claim: Claim) -> None:
    store.publisher(job).publish(batch, [], claim=claim)


def begun(store: Store, wanted: TargetJob) -> TargetJobs:
    """Publish the first batch of a job."""
    jobs = TargetJobs(store)
    publish(store, wanted.job, 0, jobs.begin(wanted, 0)[1])
    return jobs


@pytest.fixture
def totals(store: Store) -> None:
    store.create_table("totals", COLUMNS, "user")


@pytest.mark.usefixtures("totals")
def test_a_job_continues_with_the_tables_and_settings_of_its_record(store: Store) -> None:
    jobs = begun(store, query("a"))
    jobs.check(query("a"))
    job, claim = jobs.begin(query("a"), 1)
    publish(store, "a", 1, claim)
    assert jobs.find("totals") == job
    assert job.tables["totals"] == store.table("totals").identity()
    with pytest.raises(OptionError, match="timeZone = UTC before, = Asia/Tokyo now"):
        jobs.check(query("a", {"spark.sql.session.timeZone": "Asia/Tokyo"}))


@pytest.mark.usefixtures("totals")
def test_a_target_that_was_created_again_is_not_that_of_its_job(store: Store) -> None:
    jobs = begun(store, query("a"))
    store.drop_table("totals")
    store.create_table("totals", COLUMNS, "user")
    with pytest.raises(DataLossError, match="'totals' was dropped and created again"):
        jobs.check(query("a"))
    with pytest.raises(DataLossError, match="'totals' was dropped and created again"):
        jobs.begin(query("a"), 1)
    # It is free for a new job, and for other writers.
    jobs.check_other("totals", "this MERGE")
    begun(store, query("b", overwrite=True)).check(query("b"))


@pytest.mark.usefixtures("totals")
def test_the_record_of_a_copy_is_not_compared_with_the_tables_of_the_original(store: Store) -> None:
    jobs = begun(store, query("a"))
    registry = store.beside("totals", "__headrace_followed__")
    rows = store.table(registry).scan().read_all()
    columns = store.table(registry).schema
    for name in ("totals", registry):
        store.drop_table(name)
    store.create_table("totals", COLUMNS, "user")
    store.create_table(registry, columns.arrow, columns.primary_key).put(rows)
    jobs.check(query("a"))
    job, claim = jobs.begin(query("a"), 1)
    publish(store, "a", 1, claim)
    found = jobs.find("totals")
    assert found is not None
    assert found.tables["totals"] == store.table("totals").identity() != job.tables["totals"]


@pytest.mark.usefixtures("totals")
def test_a_mirror_and_a_query_exclude_each_other(store: Store) -> None:
    jobs = TargetJobs(store)
    store.create_table("totals__current", COLUMNS, "user")
    mirror = TargetJob("totals", "tunnel", {}, kind=MIRROR)
    claim = jobs.register(mirror, ["totals__current"])
    assert jobs.register(mirror, ["totals__current"]) == claim
    publish(store, "mirror", 0, claim)
    with pytest.raises(HeadraceError, match=r"(fills table|into) 'totals'"):
        jobs.check(query(""))
    with pytest.raises(OptionError, match="a mirror fills table 'totals', and this MERGE"):
        jobs.check_other("totals", "this MERGE")
    jobs.check_whole("totals")
    store.drop_table("totals__current")
    with pytest.raises(DataLossError, match="totals__current"):
        jobs.check_whole("totals")
    begun(store, query("a", overwrite=True))
    with pytest.raises(HeadraceError, match="another job has changed the row of its target"):
        publish(store, "mirror", 1, claim)


@pytest.mark.needs("any_names")
@pytest.mark.usefixtures("totals")
def test_names_of_different_tables_are_different_targets(store: Store) -> None:
    begun(store, query("a"))
    store.create_table("totals ", COLUMNS, "user")
    TargetJobs(store).register(TargetJob("totals ", "tunnel", {}, kind=MIRROR))


@pytest.mark.needs("schemas")
@pytest.mark.usefixtures("totals")
def test_one_table_under_two_names_has_one_job(store: Store) -> None:
    jobs = begun(store, query("a"))
    with pytest.raises(AlreadyExistsError, match="a followed query fills table 'totals'"):
        jobs.register(TargetJob("public.totals", "tunnel", {}, kind=MIRROR))


@pytest.mark.needs("transactions")
@pytest.mark.usefixtures("totals")
def test_a_new_text_follows_the_last_batch_of_the_text_before(store: Store) -> None:
    jobs = begun(store, query("a"))
    _, running = jobs.begin(query("a"), 1)
    known = jobs.own(query("a"))
    assert known is not None
    fenced = jobs.fence(known)
    # A batch of the old text that began before the fence publishes nothing.
    with pytest.raises(HeadraceError):
        publish(store, "a", 1, running)
    with pytest.raises(OptionError):
        jobs.fence(known)
    wanted = TargetJob("totals", "a", {"query": "other"}, ("state",), settings=SETTINGS)
    now, claim = jobs.succeed(fenced, wanted)
    assert is_changed(known, wanted)
    publish(store, "a-text", 0, claim)
    assert jobs.own(wanted) == now
    jobs.begin(wanted, 1)
    with pytest.raises(OptionError, match="CREATE OR REPLACE STREAM"):
        jobs.check(query("a"))

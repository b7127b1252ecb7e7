"""Streams whose statement is ``MERGE INTO``."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.derived.merge.plan import PREIMAGE, MergePlan
from headrace.derived.merge.queries import MergeQueries
from headrace.derived.merge.statement import Merge
from headrace.derived.merge.stream import MergeStream, checked_merge, source_relation
from headrace.errors import OptionError, SqlError
from headrace.formats.registry import source_of
from headrace.streaming_sql.kinds.kind import DefinedStream, ReadyStream, StreamKind
from headrace.streaming_sql.providers import is_headrace


class MergeStreams(StreamKind):
    """``MERGE INTO``: rows of the target are put and deleted by key."""

    def prepare(self, stream: DefinedStream) -> ReadyStream:
        ready, options = self._checked(stream)
        return stream.ready(ready.start, options)

    def properties(self, stream: DefinedStream) -> list[tuple[str, str]]:
        ready, _ = self._checked(stream)
        plan, queries = ready.rows.queries.plan, ready.rows.queries
        keys = ", ".join(f"{name} = {key}" for name, key in zip(queries.key_names, plan.keys, strict=True))
        rows = [("key", keys)]
        rows += [("clause", _clause_text(clause.text, clause.values)) for clause in (*plan.matched, *plan.not_matched)]
        rows.append(("order", _order_text(plan)))
        rows.append(("target rows", f"looked up by key: {', '.join(plan.looked_up)}"))
        rows.append(("replay", _replay_text(queries)))
        return rows

    def plan(self, stream: DefinedStream) -> str:
        return self._analyzed_plan(f"SELECT * FROM {self._relation(stream)}")

    def _relation(self, stream: DefinedStream) -> str:
        body = _merge(stream)
        return source_relation(self._tables.rewritten(body.source), body)

    def _checked(self, stream: DefinedStream) -> tuple[MergeStream, Mapping[str, str]]:
        """Return the stream, and the options of its sink."""
        body, target, options = _merge(stream), stream.target, stream.options
        if target is None or not is_headrace(target.provider):
            raise SqlError(
                "the target of a MERGE in a stream must be a table of format headrace, tablestore or yt",
                received=str(body.target),
                remedy="CREATE TABLE … USING headrace OPTIONS (…) defines one",
            )
        if options.output_mode == "complete":
            raise OptionError(
                "a MERGE has no complete mode: the rows of a batch are changes",
                received=options.output_mode,
                valid="append, update",
            )
        if options.overwrite:
            raise OptionError("option overwrite has no effect: a MERGE follows changes", remedy="leave it out")
        target_options = stream.sink_options()
        self._tables.create_views_for(body.using)
        frame = self._spark.sql(f"SELECT * FROM {self._relation(stream)}")
        sink = source_of(target.provider, target_options)
        return checked_merge(self._spark, body, frame, sink, stream.arguments(self._spark, sink)), target_options


def _merge(stream: DefinedStream) -> Merge:
    body = stream.statement.body
    assert isinstance(body, Merge)
    return body


def _clause_text(text: str, values: Mapping[str, str]) -> str:
    if not text.endswith("*"):
        return text
    return f"{text} ({', '.join(values) or 'no columns'})"


def _order_text(plan: MergePlan) -> str:
    if not plan.ordered:
        return "none: several rows of a key in a batch are an error"
    preimages = f"without {PREIMAGE}" if plan.drops_preimages else f"with {PREIMAGE}"
    last = f"the last change of each key in a batch, by _commit_version and position in the log, {preimages}"
    if not plan.row_key:
        return last
    return f"{last}; a source row ({', '.join(plan.row_key)}) that gives up a key does not delete one that takes it"


def _replay_text(queries: MergeQueries) -> str:
    if not queries.repeatable:
        return "a published batch is not merged again"
    return (
        "the store has no transactions: a repeated batch gives the same rows, because the clauses write values of the "
        "source only, the same ones in UPDATE and INSERT"
    )

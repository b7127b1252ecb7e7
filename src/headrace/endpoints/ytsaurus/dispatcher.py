"""Requests that come again: what was answered to a mutation id is kept in the transaction that did what was asked."""

from __future__ import annotations

from headrace.endpoints.ytsaurus.commands import Answer, Command, Context, Parameters
from headrace.endpoints.ytsaurus.ids import NULL_ID
from headrace.endpoints.ytsaurus.transactions.prerequisites import check_prerequisites
from headrace.stores.embedded.connection import Database
from headrace.wire.yson import documents

KEPT_MICROSECONDS = 600_000_000
"""Clients send a request again for some minutes."""


class Mutations:
    """The answers to mutations of the last minutes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, mutation_id: str) -> Answer | None:
        """Return what was answered, None if the mutation was not done."""
        found = self._database.query("SELECT answer FROM yt_mutation WHERE id = ?", (mutation_id,))
        return Answer.structured(documents.loads(found[0][0])) if found else None

    def keep(self, mutation_id: str, answer: Answer, now: int) -> None:
        """Keep an answer, in the transaction of the store that runs."""
        written = documents.dumps(answer.value, text=False)
        self._database.execute("INSERT INTO yt_mutation VALUES (?, ?, ?)", (mutation_id, written, now))

    def forget_old(self, now: int) -> None:
        """Forget the answers that nobody asks for any more."""
        if self._database.query("SELECT 1 FROM yt_mutation WHERE done < ? LIMIT 1", (now - KEPT_MICROSECONDS,)):
            with self._database.write():
                self._database.execute("DELETE FROM yt_mutation WHERE done < ?", (now - KEPT_MICROSECONDS,))


def execute(context: Context, known: Command, parameters: Parameters, body: bytes) -> Answer:
    """Run a command, once for each mutation id, in the transaction of the store that it needs."""
    check_prerequisites(context, parameters)
    database = context.cluster.database
    if known.volatile and (known.atomic or known.heavy):
        # What has ended must not stand in the way, however long ago the work in the background looked.
        context.transactions.abort_expired()
    if known.atomic:
        mutation_id = parameters.text("mutation_id", None)
        mutation_id = None if mutation_id == NULL_ID else mutation_id
        with database.write():
            done = None if mutation_id is None else context.cluster.mutations.find(mutation_id)
            if done is not None:
                return done
            # Again: nobody can change them now.
            check_prerequisites(context, parameters)
            answer = known.run(context, parameters, body)
            if mutation_id is not None:
                context.cluster.mutations.keep(mutation_id, answer, context.now)
            return answer
    if not known.volatile and not known.heavy:
        with database.read():
            return known.run(context, parameters, body)
    return known.run(context, parameters, body)

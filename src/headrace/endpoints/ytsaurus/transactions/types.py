"""The types of transactions: ``start_transaction`` names one, and later the id tells which it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.endpoints.ytsaurus.errors import no_such_transaction
from headrace.endpoints.ytsaurus.ids import ObjectType

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context


@dataclass(frozen=True)
class Start:
    """What a client asks of a new transaction.

    Attributes:
        parent: the id of the transaction that it is to be nested in, None if of none.
        timeout: milliseconds after the last ping at which it is to be aborted.
        deadline: µs since 1970 at which it is to be aborted in any case, if there is such a time.
        attributes: what the client says of it.
    """

    parent: str | None
    timeout: int
    deadline: int | None
    attributes: Mapping[str, Any]


class TransactionType:
    """A type of transactions. Each method but `ping` and `attributes` runs in a write transaction of the store.

    All but `start` raise the error of `no_such_transaction` if there is none of that id.

    Attributes:
        name: as ``start_transaction`` has it.
        object_type: as ids tell it.
    """

    name: ClassVar[str]
    object_type: ClassVar[ObjectType]

    def start(self, context: Context, wanted: Start) -> str:
        """Begin a transaction, and return its id."""
        raise NotImplementedError

    def ping(self, context: Context, transaction_id: str) -> None:
        """Let a transaction live for another timeout."""
        raise no_such_transaction(transaction_id)

    def commit(self, context: Context, transaction_id: str) -> Mapping[str, Any]:
        """Make the changes of a transaction visible; return what the answer is to say."""
        raise no_such_transaction(transaction_id)

    def abort(self, context: Context, transaction_id: str) -> None:
        """Forget the changes of a transaction."""
        raise no_such_transaction(transaction_id)

    def attributes(self, context: Context, transaction_id: str) -> Mapping[str, Any] | None:
        """Return what ``#<id>/@`` has, None if there is no such transaction."""
        return None


TRANSACTION_TYPES: dict[str, TransactionType] = {}
"""Name → type, of all but master transactions; filled by `register_transactions` as modules are imported."""


def register_transactions(transaction_type: TransactionType) -> TransactionType:
    """Make a type of transactions known, and return it."""
    TRANSACTION_TYPES[transaction_type.name] = transaction_type
    return transaction_type

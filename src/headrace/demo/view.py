"""The live view of the demonstration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.demo.proof import Statistic, Total, WindowKey

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOWS_SHOWN = 8
_USERS_SHOWN = 3
_BAR_CELLS = 40


@dataclass(frozen=True)
class Snapshot:
    """The state at one time.

    Attributes:
        changes: the number of changes in the log; None if the store does not know it.
        orders: the number of rows; None if the store does not know it.
        lag: the number of changes that a stream has not committed, the greater one of both streams.
        batch: the last committed batch of the statistics.
    """

    seconds: float
    driver: str
    changes: int | None
    orders: int | None
    lag: int | None
    batch: int | None
    windows: Mapping[WindowKey, Statistic] = field(default_factory=dict)
    totals: Mapping[str, Total] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """The number of events in all windows."""
        return sum(count for count, _ in self.windows.values())

    @property
    def totalled(self) -> int:
        """The number of orders in all totals."""
        return sum(orders for orders, _, _ in self.totals.values())


def as_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as one JSON event."""
    return {
        "event": "progress",
        "seconds": round(snapshot.seconds, 1),
        "driver": snapshot.driver,
        "changes": snapshot.changes,
        "orders": snapshot.orders,
        "lag": snapshot.lag,
        "batch": snapshot.batch,
        "windows": len(snapshot.windows),
        "events_counted": snapshot.counted,
        "orders_in_totals": snapshot.totalled,
    }


def as_line(snapshot: Snapshot) -> str:
    """Return a snapshot as one line of text."""
    batch = "none" if snapshot.batch is None else snapshot.batch
    return (
        f"{snapshot.seconds:5.1f} s  driver {snapshot.driver:<10} changes {_shown(snapshot.changes):>6}  "
        f"lag {_shown(snapshot.lag):>6}  "
        f"batch {batch:>4}  windows {len(snapshot.windows):>3}  events counted {snapshot.counted:>6}  "
        f"orders in totals {snapshot.totalled:>6}"
    )


def as_picture(snapshot: Snapshot) -> RenderableType:
    """Return a snapshot as a line of figures, a table of the latest windows, and a table of the totals."""
    from rich.console import Group
    from rich.text import Text

    from headrace.cli.output import console_table

    latest = sorted(snapshot.windows.items())[-_WINDOWS_SHOWN:]
    most = max([count for _, (count, _) in latest] + [1])
    rows = [
        [begin, end, count, f"{total:.2f}", "█" * round(count / most * _BAR_CELLS)]
        for (begin, end), (count, total) in latest
    ]
    rows += [["", "", "", "", ""]] * (_WINDOWS_SHOWN - len(rows))
    styles = {"running": "bold green", "starting": "bold yellow", "killed": "bold red"}
    head = Text.assemble(
        (f"{snapshot.seconds:5.1f} s   ", "dim"),
        "driver ",
        (f"{snapshot.driver:<9}", styles.get(snapshot.driver, "bold")),
        "  changes written ",
        (f"{_shown(snapshot.changes):>6}", "bold"),
        "   lag ",
        (f"{_shown(snapshot.lag):>6}", "bold red" if snapshot.lag else "bold green"),
        "   batches published ",
        (f"{0 if snapshot.batch is None else snapshot.batch + 1:>4}", "bold"),
    )
    totals = [
        [user, orders, f"{spent:.2f}", f"{highest:.2f}"]
        for user, (orders, spent, highest) in sorted(snapshot.totals.items())
    ]
    totals += [["", "", "", ""]] * (_USERS_SHOWN - len(totals))
    return Group(
        head,
        console_table(("begin", "end", "count", "totalPrice", ""), rows),
        console_table(("UserId", "orders", "spent", "highest"), totals),
    )


def _shown(number: int | None) -> str:
    return "?" if number is None else str(number)

"""Views that refresh until an interruption: of the lag of a consumer or a tunnel, and when it will be read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.output import console_table
from headrace.model.tunnels.lag import duration_text

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.model.tunnels.lag import Lag

_SECONDS = 30.0
"""A reader commits whole batches, so its lag falls in steps: the rate is an average over some of them."""


class CatchUp:
    """The decrease of a lag over the last 30 seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, Lag]] = deque()

    def note(self, lag: Lag) -> None:
        """Note the lag of now."""
        now = self._clock()
        self._seen.append((now, lag))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _SECONDS:
            self._seen.popleft()

    @property
    def rows_per_second(self) -> float | None:
        """The decrease in rows per second, negative if the lag grows; None if it is unknown."""
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (first.rows - last.rows) / (end - begin) if end > begin and first.exact and last.exact else None

    @property
    def eta_seconds(self) -> float | None:
        """The time until nothing is unread at this rate; None if it is unknown, or the lag does not fall."""
        return self._seen[-1][1].eta_seconds(self.rows_per_second)

    def facts(self) -> dict[str, Any]:
        """Return both figures as a record, rounded."""
        rate, eta = self.rows_per_second, self.eta_seconds
        return {
            "lag_decrease_per_second": None if rate is None else round(rate, 1),
            "eta_seconds": None if eta is None else round(eta, 1),
        }

    def __str__(self) -> str:
        """Return the figures for people, to follow the lag: empty if nothing is known."""
        rate, eta = self.rows_per_second, self.eta_seconds
        if not eta:
            return f", grows by {-rate:.1f} rows/s" if rate and rate < 0 else ""
        return f", falls by {rate:.1f} rows/s, done in {duration_text(eta)}"


def watch_lag(
    output: Output, read: Callable[[], tuple[str, Lag, dict[str, Any]]], parts: str, columns: tuple[str, ...]
) -> NoReturn:
    """Show a lag until the process is interrupted.

    Args:
        read: returns the state of now as a line, its lag, and a record of all figures.
        parts: the key of the record with the parts that a terminal shows as a table.
        columns: the keys of a part that are shown.
    """
    catch_up = CatchUp()
    with output.live() as view:
        while True:
            line, lag, facts = read()
            catch_up.note(lag)
            text = f"{line}{catch_up}"
            picture = console_table(
                columns, [[part.get(column) for column in columns] for part in facts[parts]], title=text
            )
            view.show(text, picture, **facts, **catch_up.facts())
            # Refreshed by time, not by changes of the store: lag in seconds grows without any change.
            time.sleep(view.seconds_between)

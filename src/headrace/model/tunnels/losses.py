"""Reading on after changes that are lost, as the reader has asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from headrace.errors import DataLossError
from headrace.model.tunnels.values import Page, Position

_log = logging.getLogger("headrace")


class Skipping(Protocol):
    """A tunnel; see `headrace.ports.Tunnel`."""

    @property
    def name(self) -> str: ...

    def accept_lost(self, channel: str, position: Position) -> bool: ...

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]: ...


def read_on(
    tunnel: Skipping, channel: str, position: Position, read: Callable[[Position], Page]
) -> tuple[Position, Page]:
    """Read a page at a position, or behind changes that are lost. Also return the position where the page begins."""
    while True:
        try:
            return position, read(position)
        except DataLossError:
            found, lost = (
                (position, None) if tunnel.accept_lost(channel, position) else tunnel.skip_lost(channel, position)
            )
            if found == position and lost == 0:
                raise
            _log.warning(
                "failOnDataLoss=false: %s changes of tunnel %s, channel %s are lost and skipped",
                "an unknown number of" if lost is None else lost,
                tunnel.name,
                channel,
            )
            position = found

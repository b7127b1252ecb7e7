"""What a store without tunnels answers when it is asked for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.ports import Store, Tunnel
from headrace.tunnels.values import Start, TunnelKind


class StoreWithoutTunnels(Store):
    """A store that keeps no changes of its tables."""

    def create_tunnel(
        self,
        table: str,
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
    ) -> Tunnel:
        _refuse(name)

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> Tunnel:
        _refuse(id_or_name)

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        """Return nothing: there are none."""
        return []

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        if not missing_ok:
            _refuse(id_or_name)


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(
        "tables of YTsaurus keep no changes, so they have no tunnels",
        received=repr(name),
        remedy="let writers append to a queue (store.create_queue), and read it with a consumer",
    )

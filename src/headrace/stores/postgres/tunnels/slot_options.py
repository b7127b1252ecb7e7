"""The options of a tunnel's slot: an existing slot or publication, which headrace does not drop, and failover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, StoreBusyError, UnsupportedError, shown
from headrace.model.tunnels.values import TunnelKind
from headrace.options.names import check_names
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase

OPTIONS = ("slot", "publication", "failover")
_FAILOVER_VERSION = 170_000
_SLOT = """
SELECT slot_type, plugin::text, database::text, current_database()::text, temporary, two_phase, active_pid, wal_status,
    confirmed_flush_lsn - '0/0'
FROM pg_replication_slots WHERE slot_name = %s
"""


class SlotOptions(NamedTuple):
    """The options of a new tunnel.

    Attributes:
        slot: the name of an existing slot; None for a new one.
        publication: the name of an existing publication; None for a new one.
        failover: whether standbys keep a copy of the new slot.
    """

    slot: str | None = None
    publication: str | None = None
    failover: bool = False


def parse(options: Mapping[str, Any], kind: TunnelKind) -> SlotOptions:
    """Return the options of `PostgresStore.create_tunnel`.

    Raises:
        OptionError: a name or value is invalid, or the options contradict each other.
    """
    check_names("a tunnel of PostgreSQL", options, OPTIONS)
    for name in ("slot", "publication"):
        value = options.get(name)
        if value is not None and not (isinstance(value, str) and value and "\0" not in value):
            raise OptionError(f"option {name} must be a name", received=shown(value))
    if not isinstance(options.get("failover") or False, bool):
        raise OptionError("option failover must be True or False", received=shown(options["failover"]))
    parsed = SlotOptions(**{name: value for name, value in options.items() if value is not None})
    if kind is TunnelKind.BASE_DATA and parsed != SlotOptions():
        raise OptionError("a tunnel of kind BaseData has no slot", received=", ".join(sorted(options)))
    if parsed.slot is not None and parsed.failover:
        raise OptionError("option failover is for a new slot", received=f"slot {parsed.slot}")
    if parsed.slot is not None and parsed.publication is None:
        raise OptionError(
            "an existing slot needs an existing publication: it begins before a new one would",
            received=f"slot {parsed.slot}",
            remedy="give option publication, too",
        )
    return parsed


def check_failover(database: TunnelDatabase) -> None:
    """Raise `UnsupportedError` if the server has no failover slots."""
    version = database.run(lambda statements: statements.connection.info.server_version)
    if version < _FAILOVER_VERSION:
        raise UnsupportedError(
            "this server has no failover slots",
            received=f"PostgreSQL {version // 10_000}",
            valid="PostgreSQL 17 and later",
            remedy="leave out option failover",
        )


def use_slot(database: TunnelDatabase, name: str, tunnel: str) -> int:
    """Return the LSN from which an existing slot has all changes, for a tunnel with an id.

    Raises:
        NotFoundError: there is no such slot.
        UnsupportedError: a tunnel cannot read it.
        AlreadyExistsError: another tunnel reads it.
        StoreBusyError: another process reads it.
    """
    slots = database.query(_SLOT, (name,))
    if not slots:
        names = database.query("SELECT slot_name::text FROM pg_replication_slots WHERE plugin = 'pgoutput' ORDER BY 1")
        raise NotFoundError("no such replication slot", received=repr(name), valid=[each for (each,) in names])
    slot_type, plugin, of, here, temporary, two_phase, process, status, confirmed = slots[0]
    for wrong, received, valid in (
        (slot_type != "logical", "a physical slot", "a logical slot"),
        (plugin != "pgoutput", f"plugin {plugin}", "plugin pgoutput"),
        (of != here, f"a slot of database {of}", f"a slot of database {here}"),
        (temporary, "a temporary slot", "a permanent slot"),
        (two_phase, "a slot with two_phase = true", "two_phase = false"),
        (status == "lost" or confirmed is None, "a slot that the server has invalidated", "a slot with its log"),
    ):
        if wrong:
            raise UnsupportedError(f"a tunnel cannot read slot {name!r}", received=received, valid=valid)
    if process is not None:
        raise StoreBusyError(f"slot {name!r} is in use", received=f"server process {process}", remedy="stop its reader")
    used = database.query("SELECT name FROM headrace.tunnel WHERE slot = %s AND id <> %s", (name, tunnel))
    if used:
        raise AlreadyExistsError(f"a tunnel reads slot {name!r}", received=f"tunnel {used[0][0]}")
    return int(confirmed)

"""The options of a new tunnel: its slot and publication, the limit of its log, and what it leaves out of its table.

An existing slot or publication belongs to others, so headrace does not drop it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, StoreBusyError, UnsupportedError, shown
from headrace.model.tunnels.masks import Mask, parse_masks
from headrace.model.tunnels.values import TunnelKind
from headrace.options.kinds import size, text
from headrace.options.names import check_names
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase

_CHOICES = ("columns", "exclude", "where", "mask", "mask_key")
OPTIONS = ("slot", "publication", "failover", "max_slot_bytes", "at_slot_limit", *_CHOICES)
WARN, DROP = "warn", "drop"
ACTIONS: Final = (WARN, DROP)
_FAILOVER_VERSION = 170_000
_SHORTEST_KEY, _LONGEST_KEY = 16, 64
_SLOT = """
SELECT slot_type, plugin::text, database::text, current_database()::text, temporary, two_phase, active_pid, wal_status,
    confirmed_flush_lsn - '0/0'
FROM pg_replication_slots WHERE slot_name = %s
"""
_USABLE_SLOTS = """
SELECT slot_name::text FROM pg_replication_slots WHERE plugin = 'pgoutput' AND database = current_database()
    AND slot_name NOT IN (SELECT slot FROM headrace.tunnel WHERE slot IS NOT NULL) ORDER BY 1
"""


class SlotLimit(NamedTuple):
    """The limit of a tunnel's slot.

    Attributes:
        bytes: the log that the server may keep for it.
        action: `WARN`, or `DROP` for a slot that is dropped when it is reached.
        reason: why the slot was dropped, or was to be dropped; it may still be there. None if neither.
    """

    bytes: int
    action: str
    reason: str | None = None

    def warnings(self, retained: int | None) -> list[str]:
        """Return what a person should know about a slot.

        Args:
            retained: the log that the server keeps for it; None without a slot.
        """
        if retained is None:
            return [] if self.reason is None else [f"{self.reason}: create a new tunnel"]
        if 2 * retained <= self.bytes:
            return []
        end = "and the slot is dropped at the limit" if self.action == DROP else "and nothing happens at the limit"
        return [
            f"the server keeps {megabytes(retained)} of log for the tunnel, of max_slot_bytes = "
            f"{megabytes(self.bytes)}, {end}: start the query that reads the tunnel, or drop the tunnel"
        ]


class TunnelOptions(NamedTuple):
    """The options of a new tunnel.

    Attributes:
        slot: the name of an existing slot; None for a new one.
        publication: the name of an existing publication; None for a new one.
        failover: whether standbys keep a copy of the new slot.
        columns: the only columns; None for all.
        exclude: the columns that are left out; None if ``columns`` says so.
        where: the condition of the only rows, in SQL.
        mask: the masks of columns.
        mask_key: the key of hashes; None for that of the other tunnels of the database.
        limit: the limit of the slot.
    """

    slot: str | None = None
    publication: str | None = None
    failover: bool = False
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    where: str | None = None
    mask: Mapping[str, Mask] = {}
    mask_key: bytes | None = None
    limit: SlotLimit | None = None


def parse(options: Mapping[str, Any], kind: TunnelKind, *, several: bool = False) -> TunnelOptions:
    """Return the options of `PostgresStore.create_tunnel`.

    Args:
        several: the tunnel is of several tables.

    Raises:
        UnsupportedError: an option of one table for a tunnel of several.
        OptionError: a name or value is invalid, or the options contradict each other.
    """
    check_names("a tunnel of PostgreSQL", options, OPTIONS)
    for name in options.keys() - {"mask_key"}:
        _check_texts(name, options[name])
    for name in ("slot", "publication"):
        value = options.get(name)
        if value is not None and not (isinstance(value, str) and value):
            raise OptionError(f"option {name} must be a name", received=shown(value))
    if not isinstance(options.get("failover") or False, bool):
        raise OptionError("option failover must be True or False", received=shown(options["failover"]))
    given = {name: value for name, value in options.items() if value is not None}
    if several and (of_one := [name for name in _CHOICES if name in given]):
        raise UnsupportedError(
            "a tunnel of several tables has all their columns and rows",
            received=f"option {', '.join(of_one)}",
            remedy="create a tunnel of one table",
        )
    limit = _limit(given)
    others = {name: value for name, value in given.items() if name not in ("max_slot_bytes", "at_slot_limit")}
    parsed = TunnelOptions(**{**others, **_choices(given)}, limit=limit)
    if kind is TunnelKind.BASE_DATA and (of_slot := sorted(given.keys() - set(_CHOICES))):
        raise OptionError("a tunnel of kind BaseData has no slot", received=", ".join(of_slot))
    if parsed.slot is not None and parsed.failover:
        raise OptionError("option failover is for a new slot", received=f"slot {parsed.slot}")
    if parsed.slot is not None and parsed.publication is None:
        raise OptionError(
            "an existing slot needs an existing publication: it begins before a new one would",
            received=f"slot {parsed.slot}",
            remedy="give option publication, too",
        )
    chosen = [name for name in ("columns", "exclude", "where") if name in given]
    if parsed.publication is not None and chosen:
        raise OptionError(
            "an existing publication chooses the columns and rows of its tunnel",
            received=f"publication {parsed.publication} and {', '.join(chosen)}",
            remedy="ALTER PUBLICATION … SET TABLE … (columns) WHERE (…) before the tunnel is created; option mask "
            "works with it",
        )
    return parsed


def _limit(given: Mapping[str, Any]) -> SlotLimit | None:
    action = given.get("at_slot_limit", WARN)
    if action not in ACTIONS:
        raise OptionError("unknown value of option at_slot_limit", received=shown(action), valid=ACTIONS)
    limit = given.get("max_slot_bytes")
    if limit is None:
        if "at_slot_limit" in given:
            raise OptionError("option at_slot_limit needs a limit", remedy="give option max_slot_bytes, too")
        return None
    if action == DROP and "slot" in given:
        raise OptionError(
            "headrace drops no slot that it has not created",
            received=f"slot {given['slot']} and at_slot_limit {action}",
            valid=f"at_slot_limit {WARN}",
        )
    try:
        return SlotLimit(size(str(limit)), action)
    except ValueError as error:
        raise OptionError("invalid value of option max_slot_bytes", received=shown(limit), valid=str(error)) from None


def _choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of what a tunnel leaves out, checked."""
    if "columns" in given and "exclude" in given:
        raise OptionError("options columns and exclude contradict each other", remedy="give one of them")
    parsed: dict[str, Any] = {name: _names(name, given[name]) for name in ("columns", "exclude") if name in given}
    where = given.get("where")
    if where is not None and not (isinstance(where, str) and where.strip()):
        raise OptionError("option where must be a condition in SQL", received=shown(where))
    if "mask" in given:
        parsed["mask"] = parse_masks(given["mask"])
    if "mask_key" in given:
        key = given["mask_key"]
        parsed["mask_key"] = key = key.encode(errors="surrogatepass") if isinstance(key, str) else key
        if not (isinstance(key, bytes) and _SHORTEST_KEY <= len(key) <= _LONGEST_KEY):
            # The key is a secret.
            raise OptionError(
                "option mask_key must be a secret text or bytes",
                received=type(given["mask_key"]).__name__,
                valid=f"{_SHORTEST_KEY} to {_LONGEST_KEY} bytes",
            )
        if all(mask.kind != "hash" for mask in parsed.get("mask", {}).values()):
            raise OptionError(
                "option mask_key is for masks of kind hash",
                received="none of them",
                remedy="leave out mask_key, or give a column the mask hash",
            )
    return parsed


def _check_texts(option: str, given: object) -> None:
    """Raise `OptionError` for a text that PostgreSQL cannot have, also in a list or as the value of a mask."""
    values = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    for value in values:
        if isinstance(value, str):
            try:
                text(value)
            except ValueError as error:
                raise OptionError(
                    f"option {option} has a text that PostgreSQL cannot have", received=shown(value), valid=str(error)
                ) from None


def _names(option: str, given: object) -> tuple[str, ...]:
    """Return names of columns: a sequence of texts, or one text with commas."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"option {option} must be names of columns", received=shown(given))
    return tuple(dict.fromkeys(name.strip() if isinstance(given, str) else name for name in names))


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
        names = database.query(_USABLE_SLOTS)
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


def megabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / (1 << 20):,.0f} MB"

"""Options of automatic trimming, as the attribute ``@auto_trim_config`` of the queue agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.model.queues.validation import changed_options
from headrace.model.queues.values import QueueOptions

_MILLISECONDS = 1000


def options_of(config: Mapping[str, Any]) -> QueueOptions:
    """Return the options of an ``@auto_trim_config``."""
    lifetime = config.get("retained_lifetime_duration")
    rows = config.get("retained_rows")
    return QueueOptions(
        auto_trim=bool(config.get("enable", False)),
        retained_rows=None if rows is None else int(rows),
        retained_seconds=None if lifetime is None else int(lifetime) / _MILLISECONDS,
    )


def config_of(options: QueueOptions, changes: Mapping[str, Any]) -> tuple[QueueOptions, dict[str, Any]]:
    """Return options with some changed, and the value of ``@auto_trim_config`` for them.

    Raises:
        OptionError: an option is unknown, or has an invalid value.
    """
    changed = changed_options(options, changes)
    if changed.retained_seconds is not None and changed.retained_seconds != int(changed.retained_seconds):
        raise OptionError(
            "option retained_seconds must be a whole number on YTsaurus", received=repr(changed.retained_seconds)
        )
    config: dict[str, Any] = {"enable": changed.auto_trim}
    if changed.retained_rows is not None:
        config["retained_rows"] = int(changed.retained_rows)
    if changed.retained_seconds is not None:
        config["retained_lifetime_duration"] = int(changed.retained_seconds) * _MILLISECONDS
    return changed, config

"""Single values in YSON: parameters, attributes, answers. Read and written by YTsaurus' own client library.

The library is taken with its native bindings where they are installed and in pure Python elsewhere. Neither is safe
against every input by itself (the bindings overrun the stack on values nested too deep, the pure parser raises
whatever it meets), so this module bounds size and depth and knows one error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from headrace.errors import HeadraceError, MissingDependencyError

MAX_DEPTH: Final = 128
"""How deep lists, maps and attributes may be nested; YTsaurus itself stops at 256."""
MAX_SIZE: Final = 1 << 30
"""Bytes of one document, where the caller sets no smaller bound."""

_OPENING: Final = (b"[", b"{", b"<")
_SHOWN: Final = 200


class YsonError(HeadraceError, ValueError):
    """Bytes that are no YSON, or a value that YSON cannot hold."""


def loads(data: bytes, *, max_size: int = MAX_SIZE) -> Any:
    """Read one value, in text or binary YSON.

    Returns:
        None, bool, int, float, str, list or dict. Unsigned numbers are ``yt.yson.YsonUint64``; strings that are not
        UTF-8 ``yt.yson.YsonStringProxy``; values with attributes one of the classes of ``yt.yson`` that have them.

    Raises:
        YsonError: the bytes are no value, or one that is too large or nested too deep.
    """
    values = _load_items(data, max_size, encoding="utf-8")
    if len(values) != 1:
        raise YsonError("broken YSON", received=f"{len(values)} values", valid="one")
    if sum(map(data.count, _OPENING)) > MAX_DEPTH:
        check_depth(values)
    return values[0]


def load_fragment(data: bytes, *, max_size: int = MAX_SIZE) -> list[Any]:
    """Read the items of a list fragment, as rows come; strings and keys of maps are bytes.

    Depth is bounded by the parsers alone, at 256 levels or somewhat more.

    Raises:
        YsonError: as of `loads`.
    """
    return _load_items(data, max_size, encoding=None)


def dumps(value: Any, text: bool = True, *, pretty: bool = False) -> bytes:
    """Write one value, in text YSON or binary; strings in UTF-8, bytes as they are.

    Text is on one line, with ``pretty`` on one for each item.

    Whole numbers are signed up to 2**63 - 1, unsigned from there on, or where they are ``yt.yson.YsonUint64``.

    Raises:
        YsonError: the value has a type or a number that YSON has not, or is nested too deep.
    """
    check_depth(value)
    library = _library()
    try:
        written: bytes = library.dumps(value, yson_format="pretty" if pretty else "text" if text else "binary")
    except Exception as error:
        raise YsonError("a value that YSON cannot hold", received=short_reason(error)) from None
    return written


def has_bindings() -> bool:
    """Tell whether the native parser is installed, which is some thirty times faster than the one in pure Python."""
    return bool(_library().TYPE == "BINARY")


def _load_items(data: bytes, max_size: int, *, encoding: str | None) -> list[Any]:
    if len(data) > max_size:
        raise YsonError("YSON of too many bytes", received=len(data), valid=f"at most {max_size}")
    library = _library()
    try:
        # As a list, for where a zero byte stands the native parser takes the bytes for ended, which a list is not then.
        found = library.loads(b"[%b]" % data, always_create_attributes=False, encoding=encoding)
    except Exception as error:
        # Besides its own error, the parser in pure Python raises those of decoding and of recursion.
        raise YsonError("broken YSON", received=short_reason(error)) from None
    return list(found)


def check_depth(value: Any) -> None:
    """Raise a `YsonError` if a value is nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for container in level for item in _items(container)]
        if not level:
            return
    raise YsonError("YSON nested too deep", valid=f"at most {MAX_DEPTH} levels")


def _items(value: Any) -> list[Any]:
    """Return what is nested in a value and can have something nested in it itself."""
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    attributes = getattr(value, "__dict__", {}).get("attributes")
    if isinstance(attributes, Mapping):
        inner += attributes.values()
    return [item for item in inner if isinstance(item, Mapping | list | tuple) or hasattr(item, "__dict__")]


def short_reason(error: BaseException) -> str:
    """Return what an error of YTsaurus' client says, without the details that it adds for its own logs."""
    inner = getattr(error, "inner_errors", None)
    while inner:
        error = inner[0]
        if not isinstance(error, Mapping):
            break
        inner = error.get("inner_errors")
    message = error.get("message", "") if isinstance(error, Mapping) else getattr(error, "message", None) or str(error)
    line = " ".join((message.decode(errors="replace") if isinstance(message, bytes) else str(message)).split())
    return (line if len(line) <= _SHOWN else line[:_SHOWN] + "…") or type(error).__name__


def _library() -> ModuleType:
    try:
        import yt.yson
    except ImportError:
        raise MissingDependencyError(
            "YSON needs YTsaurus' client library", remedy="install it: pip install 'headrace[yt]'"
        ) from None
    library: ModuleType = yt.yson
    return library

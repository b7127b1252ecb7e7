"""Single YSON values, such as parameters, attributes and answers, read and written by YTsaurus' client library.

The library uses its native bindings if they are installed, and pure Python otherwise. Neither is safe for every input:
deeply nested values overflow the stack in the bindings, and the pure parser raises errors of many types. Therefore this
module limits size and depth, and raises one type of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.support.extras import check_extras

MAX_DEPTH: Final = 128
"""The maximum nesting of lists, maps and attributes; the limit of YTsaurus is 256."""
MAX_SIZE: Final = 1 << 30
"""The default maximum of bytes of a value."""

_OPENING: Final = (b"[", b"{", b"<")
_SHOWN: Final = 200


class YsonError(HeadraceError, ValueError):
    """Bytes that are not YSON, or a value that YSON cannot represent."""


def loads(data: bytes, *, max_size: int = MAX_SIZE) -> Any:
    """Parse one value in text or binary YSON.

    Returns:
        None, bool, int, float, str, list or dict. Unsigned numbers are ``yt.yson.YsonUint64``; strings that are not
        UTF-8 ``yt.yson.YsonStringProxy``; values with attributes one of the classes of ``yt.yson`` that have them.

    Raises:
        YsonError: the bytes are not one value, or the value is too large or nested too deep.
    """
    values = _load_items(data, max_size, encoding="utf-8")
    if len(values) != 1:
        raise YsonError("broken YSON", received=f"{len(values)} values", valid="one")
    if sum(map(data.count, _OPENING)) > MAX_DEPTH:
        check_depth(values)
    return values[0]


def load_fragment(data: bytes, *, max_size: int = MAX_SIZE) -> list[Any]:
    """Parse the items of a list fragment, such as rows; strings and keys of maps are bytes.

    The parsers limit the depth to 256 levels or slightly more.

    Raises:
        YsonError: see `loads`.
    """
    return _load_items(data, max_size, encoding=None)


def dumps(value: Any, text: bool = True, *, pretty: bool = False) -> bytes:
    """Write one value in text or binary YSON; ``str`` is written in UTF-8.

    Text is on one line, or with ``pretty`` on one line for each item.

    Whole numbers are unsigned from 2**63 and if they are ``yt.yson.YsonUint64``, otherwise signed.

    Raises:
        YsonError: YSON cannot represent the value, or it is nested too deep.
    """
    check_depth(value)
    library = _library()
    try:
        written: bytes = library.dumps(value, yson_format="pretty" if pretty else "text" if text else "binary")
    except Exception as error:
        raise YsonError("a value that YSON cannot hold", received=short_reason(error)) from None
    return written


def has_bindings() -> bool:
    """Return whether the native parser is installed, which is about thirty times faster than the pure one."""
    return bool(_library().TYPE == "BINARY")


def _load_items(data: bytes, max_size: int, *, encoding: str | None) -> list[Any]:
    if len(data) > max_size:
        raise YsonError("YSON of too many bytes", received=len(data), valid=f"at most {max_size}")
    library = _library()
    try:
        # Parsed as a list, because the native parser stops at a zero byte, and a list is then incomplete.
        found = library.loads(b"[%b]" % data, always_create_attributes=False, encoding=encoding)
    except Exception as error:
        # Besides its own error, the pure parser raises UnicodeDecodeError and RecursionError.
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
    """Return the values inside of a value that may contain other values."""
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
    """Return the innermost message of an error of YTsaurus' client, without details for logs."""
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
    check_extras("YSON", ("headrace[yt]", "yt.yson"))
    import yt.yson

    library: ModuleType = yt.yson
    return library

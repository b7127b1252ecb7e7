"""Ids of objects in YTsaurus' form: four hexadecimal numbers, the third of which contains the type."""

from __future__ import annotations

import enum
import hashlib
import re
import secrets

_ID = re.compile(r"[0-9a-f]{1,8}(-[0-9a-f]{1,8}){3}")
_CELL_TAG = 1 << 16
NULL_ID = "0-0-0-0"


class ObjectType(enum.IntEnum):
    """The types of objects. The numbers are YTsaurus' own, and its clients use them."""

    TRANSACTION = 1
    ATOMIC_TABLET_TRANSACTION = 2
    NESTED_TRANSACTION = 4
    LOCK = 200
    STRING_NODE = 300
    INT64_NODE = 301
    DOUBLE_NODE = 302
    MAP_NODE = 303
    LIST_NODE = 304
    BOOLEAN_NODE = 305
    UINT64_NODE = 306
    FILE = 400
    TABLE = 401
    TRANSACTION_MAP = 407
    LINK = 417
    DOCUMENT = 421
    CHUNK = 100
    ACCOUNT = 500
    USER = 501
    GROUP = 502
    TABLET_CELL = 700
    TABLET = 702
    TABLET_CELL_BUNDLE = 706
    TABLE_SCHEMA = 1300


def new_id(kind: ObjectType) -> str:
    """Return a new random id."""
    return f"{secrets.randbits(32):x}-{secrets.randbits(32):x}-{_CELL_TAG | kind:x}-{secrets.randbits(31) + 1:x}"


def derived_id(kind: ObjectType, content: str) -> str:
    """Return the id of an object that is determined by a text, for example by its content."""
    digest = hashlib.blake2s(content.encode(), digest_size=12).digest()
    low, high, last = (int.from_bytes(digest[at : at + 4]) for at in (0, 4, 8))
    return f"{low:x}-{high:x}-{_CELL_TAG | kind:x}-{last:x}"


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def kind_of(object_id: str) -> int:
    """Return the number of an id's type, to be compared with `ObjectType`."""
    return int(object_id.split("-")[2], 16) & 0xFFFF

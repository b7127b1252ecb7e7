"""Tables with random columns, and tunnels that leave out or mask all of their values, for tests that look for these."""

from __future__ import annotations

import random
from typing import Any

from headrace.ports import Store
from tests.interop.own_database import Server

_KINDS = {"t": "text", "u": "uuid", "b": "bytea", "n": "bigint", "j": "jsonb", "d": "numeric(40,5)", "a": "text[]"}
_OF_TEXTS = ("hash", "null", "first(2)")
_MASKS = {"t": _OF_TEXTS, "u": _OF_TEXTS, "j": _OF_TEXTS, "b": ("hash", "null"), "n": ("hash", "constant(7)")}


class MaskedTable:
    """A table with rows, and a tunnel of it named ``f``.

    Attributes:
        tunnel: the tunnel.
        secrets: what nothing may show: the digits of all values, and the key of hashes, also in hexadecimal digits.
    """

    def __init__(self, server: Server, store: Store, seed: int) -> None:
        self._server = server
        self._choose = choose = random.Random(seed)
        self._names = names = choose.sample(sorted(_KINDS), 5)
        full = choose.random() < 0.3
        server.execute(
            f"CREATE TABLE fuzzed (id int PRIMARY KEY, open text, {', '.join(f'{n} {_KINDS[n]}' for n in names)});"
            f"ALTER TABLE fuzzed REPLICA IDENTITY {'FULL' if full else 'DEFAULT'}".encode()
        )
        self._digits = str(choose.randrange(10**11, 10**12))
        self._left_out = [] if full else choose.sample(names, choose.randrange(1, 4))
        masks = {name: choose.choice(_MASKS.get(name, ("null",))) for name in names if name not in self._left_out}
        key = f"the key of hashes {choose.randrange(10**12)}"
        self._values = ", ".join(map(self._value, names))
        server.execute(f"INSERT INTO fuzzed SELECT i, 'base', {self._values} FROM generate_series(1, 9) i".encode())
        choice: dict[str, Any] = {"exclude": self._left_out or None, "mask": masks, "where": "id <> 5"}
        if "hash" in masks.values():
            choice["mask_key"] = key
        self.tunnel = store.create_tunnel("fuzzed", "f", **choice)
        self.secrets = (self._digits, key, key.encode().hex())

    def _value(self, name: str) -> str:
        value = self._digits + str(self._choose.randrange(10**5))
        return {
            "t": f"'s{value}' || repeat('x', {self._choose.choice([0, 0, 3000])})",
            "u": f"'00000000-0000-0000-0000-{self._digits}'",
            "b": f"'s{value}'::bytea",
            "n": value,
            "j": f'\'{{"s": "{value}"}}\'',
            "d": value,
            "a": f"ARRAY['{value}']",
        }[name]

    def change(self) -> None:
        """Change rows, or add a column that is left out.

        A change of a large value can be an error for the reader: the log does not have it.
        """
        number, name = self._choose.randrange(1, 12), self._choose.choice(self._names)
        change = self._choose.choice(
            [
                f"INSERT INTO fuzzed SELECT {number}, 'new', {self._values} ON CONFLICT (id) DO UPDATE SET open = 'y'",
                f"UPDATE fuzzed SET {name} = {self._value(name)} WHERE id = {number}",
                f"UPDATE fuzzed SET id = id + 20 WHERE id = {number}",
                f"DELETE FROM fuzzed WHERE id = {number}",
                f"ALTER TABLE fuzzed ADD more{self._choose.randrange(10**6)} text DEFAULT 's{self._digits}'"
                if self._left_out
                else f"UPDATE fuzzed SET open = 'x' WHERE id = {number}",
            ]
        )
        self._server.execute(change.encode())

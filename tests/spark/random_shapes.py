"""Random queries over a followed table, in the shapes where a reader of the text could see another meaning than Spark.

Stars with EXCEPT, USING and NATURAL, names with and without their relation, aliases that are names of other columns,
columns named like headrace's own, constant relations, maps, subqueries, WITH and temporary views. Spark's batch answer
over the current rows is the expected one; a query may also be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

COLUMNS = {
    "region": "string", "id": "long", "k": "long", "s": "string", "s0": "long", "g0": "string", "__sign": "long",
    "mp": "map<string,long>",
}  # fmt: skip
KEY = ("region", "id")
ZONES = [("e", 1, "north"), ("n", 2, "cold")]
_numbers = st.integers(-2, 3)
_entries = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1), max_size=3)
rows = st.fixed_dictionaries(
    {
        "region": st.sampled_from(["e", "w"]), "id": st.integers(0, 5), "k": _numbers, "s0": st.integers(0, 9),
        "s": st.none() | st.sampled_from(["a", "b"]), "g0": st.sampled_from(["x", "y"]), "__sign": _numbers,
        "mp": st.none() | _entries.flatmap(lambda entries: st.permutations(list(entries.items()))),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A query, and the output columns that are the key of its target."""

    sql: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class Commit:
    """Rows that are put, keys that are deleted, and whether the queries start again before."""

    put: Sequence[dict[str, object]]
    delete: Sequence[dict[str, object]]
    restart: bool


commits = st.builds(
    Commit,
    st.lists(rows, min_size=1, max_size=8),
    st.lists(rows, max_size=3),
    st.sampled_from([False, False, True]),
)

# -- relations ----------------------------------------------------------------------------------------------

# Each has an `o` with the columns of the table; those of the last two lines also have a `z`.
_SOURCES = [
    "items o", "items AS o", "(SELECT * FROM items) o", "(SELECT *, k + 1 AS j FROM items WHERE k > -2) o",
    "items o LEFT JOIN (SELECT 'e' AS r, 'Z' AS zz) c ON o.region = c.r", "items o CROSS JOIN (SELECT 100 AS lowest) p",
    "items o LEFT SEMI JOIN zones z ON o.region = z.region", "kept",
    "(SELECT lower(region) AS region, * EXCEPT (region) FROM items) o",
    "(SELECT id % 2 AS id, * EXCEPT (id) FROM items) o",
    "(SELECT k AS id, id AS k, * EXCEPT (id, k) FROM items) AS o",
]  # fmt: skip
_JOINS = [
    "items o JOIN zones z USING (region)", "items o LEFT JOIN zones z USING (region)",
    "items o NATURAL LEFT JOIN zones z", "zones z JOIN items o USING (region)",
    "items o LEFT JOIN zone_view z ON o.region = z.region", "items o LEFT JOIN zones z USING (region, k)",
]  # fmt: skip


def _with(source: str) -> tuple[str, str]:
    """Return the WITH clause and the FROM clause of a source."""
    if source == "kept":
        return "WITH kept AS (SELECT region AS id, id AS region, * EXCEPT (region, id) FROM items) ", "kept AS o"
    return "", source


# -- queries without aggregates -----------------------------------------------------------------------------

_REGIONS = [
    "region", "region", "o.region", "o.region", "o.region AS region", "upper(region) AS region",
    "coalesce(s, '') AS region",
    "g0 AS region",
    "struct(o.region).region AS region", "CAST(o.region AS STRING) AS region",
]  # fmt: skip
_IDS = [
    "id",
    "id",
    "id",
    "o.id",
    "o.id",
    "id % 2 AS id",
    "k AS id",
    "s0 AS id",
    "CAST(o.id AS BIGINT) AS id",
    "o.id + 0 AS id",
]
_EXTRAS = [
    "k + 1 AS k", "s0 AS g0", "g0 AS s0", "`__sign` AS s", "transform(array(k), x -> x + 1)[0] AS t", "k AS x",
    "coalesce(s, g0) AS s", "mp AS mp",
]  # fmt: skip


@st.composite
def row_shapes(draw: st.DrawFn) -> Shape:
    """Return a query whose target has the key columns of the table, by name."""
    source = draw(st.sampled_from(_SOURCES + _JOINS))
    named = {"region": draw(st.sampled_from(_REGIONS)), "id": draw(st.sampled_from(_IDS))}
    for extra in draw(st.lists(st.sampled_from(_EXTRAS), max_size=3)):
        named.setdefault(extra.rpartition(" ")[2], extra)
    if draw(st.sampled_from([True, True, False])):
        stars = ["* EXCEPT ({})", "o.* EXCEPT ({})"] if source in _SOURCES else ["o.* EXCEPT ({})"]
        star = draw(st.sampled_from(stars))
        for each in draw(st.sampled_from([(), ("region",), ("id",), ("region", "id")])):
            del named[each]
        hidden = ", ".join(name for name in named if name in COLUMNS)
        items = [*named.values(), star.format(hidden) if hidden else star.partition(" ")[0]]
        items = draw(st.permutations(items))
    else:
        items = list(named.values())
    with_, source = _with(source)
    where = draw(st.sampled_from(["", " WHERE k > 0", " WHERE s = 'a' OR s0 < 5"]))
    key: tuple[str, ...] = KEY
    sql = f"{with_}SELECT {', '.join(items)} FROM {source}{where}"
    if len(items) > 1 and draw(st.integers(0, 4)) == 0 and not any("*" in item for item in items):
        origins = draw(st.sampled_from([("'a'", "'b'"), ("'a'", "'a'"), ("1", "2")]))
        listed = ", ".join(items)
        key = ("origin", *KEY)
        one, two = (f"SELECT {origin} AS origin, {listed} FROM {source}{where}" for origin in origins)
        sql = f"{with_}{one} UNION ALL {two}"
    return Shape(sql, key)


# -- queries with aggregates --------------------------------------------------------------------------------

_GROUPS = [
    "region", "o.region", "k", "o.k", "s0 DIV 3", "s0 % 2", "g0", "coalesce(s, '-')", "`__sign`", "(k + 1)", "k + 1",
    "upper(region)", "s0", "o.s0 + k",
]  # fmt: skip
_OF_JOINS = ["CASE WHEN z.region IS NULL THEN 'u' ELSE 'k' END", "coalesce(z.region, '-')", "coalesce(zone, '-')"]
_OTHER_FORMS = {
    "region": ["o.region", "REGION"], "o.region": ["region", "O.Region"], "k": ["o.k"], "o.k": ["k"],
    "(k + 1)": ["k + 1", "(o.k + 1)"], "k + 1": ["(k + 1)"], "s0": ["o.s0"], "g0": ["o.g0"],
    "coalesce(z.region, '-')": ["coalesce(region, '-')", "coalesce(o.region, '-')"],
}  # fmt: skip
_FORMS = [
    "concat({}, '!')", "CASE WHEN count(*) > 1 THEN {} END", "({}) IS NULL", "coalesce({}, {}) ", "{} * 3", "({}) * 3",
    "concat_ws('/', {}, {}, max(s))", "{}",
]  # fmt: skip
_CALLS = [
    "count(*)", "sum(k)", "min(s)", "max(s0)", "count(DISTINCT mp)", "count(DISTINCT struct(mp))", "max(`__sign`)",
    "count(DISTINCT k, s) FILTER (WHERE s0 > 3)", "count(DISTINCT array(mp, map('q', k)))", "sum(s0) + min(k)",
    "count(o.s)", "min(g0)",
]  # fmt: skip
_ALIASES = ["region", "k", "s", "s0", "g0", "id", "__sign", "x", "y", "n", "zone"]
_HAVING = [
    "count(*) > 1",
    "max(k) > 0",
    "{0} IS NOT NULL",
    "{1} IS NOT NULL",
    "{1} IS NOT NULL AND min(s0) < 5",
    "{1} > {0}",
]


@st.composite
def group_shapes(draw: st.DrawFn) -> Shape:
    """Return a query with GROUP BY, whose target has the group expressions as its key."""
    source = draw(st.sampled_from(_SOURCES + _JOINS))
    joined = source in _JOINS
    groups = draw(st.lists(st.sampled_from(_GROUPS + _OF_JOINS * joined), min_size=1, max_size=3, unique=True))
    aliases = draw(st.permutations(_ALIASES))
    items, key = [], []
    for group, alias in zip(groups, aliases, strict=False):
        shown = draw(st.sampled_from([group, group, *_OTHER_FORMS.get(group, [])]))
        items.append(f"{shown} AS `{alias}`")
        key.append(alias)
    rest = list(aliases[len(groups) :])
    for _ in range(draw(st.integers(1, 4))):
        alias = rest.pop()
        if draw(st.booleans()):
            items.append(f"{draw(st.sampled_from(_CALLS))} AS `{alias}`")
            continue
        group = draw(st.sampled_from(groups))
        other = draw(st.sampled_from([group, *_OTHER_FORMS.get(group, []), *(f"`{each}`" for each in key)]))
        items.append(f"{draw(st.sampled_from(_FORMS)).format(group, other)} AS `{alias}`")
    by = {
        "texts": list(groups),
        "numbers": [str(number + 1) for number in range(len(groups))],
        "aliases": [f"`{alias}`" for alias in key],
        "all": ["ALL"],
    }[draw(st.sampled_from(["texts", "texts", "numbers", "aliases", "all"]))]
    group = draw(st.sampled_from(groups))
    having = draw(st.sampled_from(["", "", *(f" HAVING {each}" for each in _HAVING)]))
    having = having.format(group, f"`{draw(st.sampled_from(key))}`")
    if draw(st.booleans()):
        items = items[len(groups) :] + items[: len(groups)] if "ALL" in by else items
    with_, source = _with(source)
    where = draw(st.sampled_from(["", " WHERE s0 > 1"]))
    return Shape(f"{with_}SELECT {', '.join(items)} FROM {source}{where} GROUP BY {', '.join(by)}{having}", tuple(key))

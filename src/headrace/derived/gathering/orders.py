"""Results that depend on an order of rows which the query does not determine."""

from __future__ import annotations

from headrace.derived.aggregate_calls import after_call, is_builtin_call
from headrace.derived.gathering.model import QueryModel
from headrace.derived.gathering.names import alike
from headrace.sql_text.expressions import ends_operand
from headrace.sql_text.query_text import QueryText
from headrace.sql_text.token_text import TokenText

_SORTED = "write sort_array(collect_list(…))"
_EXTREME = (
    "write min or max; for the value beside the greatest one max(struct(the order, the value)).value, or max_by(the "
    "value, struct(the order, the key columns))"
)
# Aggregates whose result depends on the order of rows, or on a choice among equal ones.
_OF_ANY_ORDER = {
    **dict.fromkeys(("collect_list", "collect_set", "array_agg"), _SORTED),
    "collect_union": "write sort_array(collect_union(…))",
    **dict.fromkeys(("any_value", "first", "first_value", "last", "last_value", "max_by", "min_by"), _EXTREME),
    **dict.fromkeys(("listagg", "string_agg"), "write array_join(sort_array(collect_list(…)), ', ')"),
    **dict.fromkeys(("percentile_approx", "approx_percentile"), "write percentile(…)"),
    "mode": "write mode(the value, true)",
    **dict.fromkeys(
        (
            "approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine", "histogram_numeric",
            "hll_sketch_agg", "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float",
            "kll_merge_agg_bigint", "kll_merge_agg_double", "kll_merge_agg_float",
            "hll_union_agg", "tuple_sketch_agg_double", "tuple_sketch_agg_integer", "tuple_union_agg_double",
            "tuple_union_agg_integer", "tuple_intersection_agg_double", "tuple_intersection_agg_integer",
        ),
        "leave it out",
    ),
}  # fmt: skip
# Functions of windows whose result depends on the order of rows that ORDER BY leaves equal.
_OF_TOTAL_ORDER = frozenset(
    (
        "row_number", "ntile", "lag", "lead", "nth_value", "first_value", "last_value", "first", "last", "any_value",
        "counter_diff",
    )
)  # fmt: skip
# Functions whose result does not depend on the order of the array that is their first argument.
_OF_ARRAYS = frozenset(("array_sort", "size", "cardinality", "array_size", "array_max", "array_min"))
_OF_ARRAYS_WITH_MORE = frozenset(("sort_array", "array_contains"))


def refuse_orders(text: QueryText, model: QueryModel | None) -> None:
    """Raise `SqlError` for a result that depends on an order of rows which the query does not determine.

    A row leaves the result with the values that it has when it leaves, so these must be those with which it entered.
    """
    total = [] if model is None else [each.index for each in model.orderings if model.is_total(each)]
    for index, token in enumerate(text.tokens):
        name = token.name.lower() if token.is_name else ""
        if is_builtin_call(text, index):
            after = after_call(text, index)
            if text.is_word(after, "OVER"):
                rows = _can_have_rows(text, after + 1)
                if (name in _OF_TOTAL_ORDER or name in _OF_ANY_ORDER or rows) and after + 1 not in total:
                    raise text.error(
                        f"rows that ORDER BY leaves equal make the result of {name} arbitrary",
                        index,
                        remedy="add the key columns of the tables to ORDER BY, as plain columns, or the columns of "
                        "GROUP BY in FROM; rank() and dense_rank() need no more than the order",
                    )
            elif name in _OF_ANY_ORDER and not (
                index in total or _is_sorted(text, index) or (name == "mode" and _chooses_least(text, index))
            ):
                raise text.error(
                    f"a followed query cannot have {name}, whose result depends on the order of rows",
                    index,
                    remedy=_OF_ANY_ORDER[name],
                )
        elif text.is_word(index, "LIMIT", "OFFSET") and _is_clause(text, index) and index not in total:
            raise text.error(
                f"{token.text.upper()} without a total order keeps arbitrary rows",
                index,
                remedy="write ORDER BY with the key columns of the tables at its end, as plain columns, or with all "
                "columns of GROUP BY or of the SELECT",
            )


def _can_have_rows(text: QueryText, index: int, seen: tuple[str, ...] = ()) -> bool:
    """Return whether the window after OVER has a frame of ROWS, or names a window that can have one."""
    name = text.window_name(index)
    if name is not None:
        follows = (at for at, each in enumerate(text.tokens) if each.is_word("WINDOW") or each.is_symbol(","))
        defined = (at + 1 for at in follows if text.is_name(at + 1) and text.is_word(at + 2, "AS"))
        windows = [at + 2 for at in defined if alike(text.tokens[at].name, name)]
        seen = (*seen, name.lower())
        return not windows or seen.count(seen[-1]) > 1 or any(_can_have_rows(text, each, seen) for each in windows)
    return any(text.is_word(each, "ROWS") for each in text.top(index + 1, text.closing[index]))


def _is_clause(text: QueryText, index: int) -> bool:
    by_all = text.is_word(index - 1, "ALL") and text.is_word(index - 2, "BY")
    piped = text.begins_pipe(index - 1) or text.begins_pipe(index - 2)
    return (
        (by_all or piped or ends_operand(text, index - 1))
        and not text.is_symbol(index - 1, ".")
        and text.token(index + 1) is not None
    )


def _is_sorted(text: TokenText, index: int) -> bool:
    """Return whether a call is the argument of a function whose result does not depend on the order of an array."""
    start = index
    while text.is_symbol(start - 1, "."):
        start -= 2
    if not text.is_symbol(start - 1, "(") or not text.is_name(start - 2):
        return False
    name, after = text.tokens[start - 2].name.lower(), after_call(text, index)
    more = name in _OF_ARRAYS_WITH_MORE and text.is_symbol(after, ",")
    return more or (name in _OF_ARRAYS | _OF_ARRAYS_WITH_MORE and text.is_symbol(after, ")"))


def _chooses_least(text: QueryText, index: int) -> bool:
    """Return whether a call of mode says which of the values is chosen that are there most often."""
    closing = text.closing[index + 1]
    second = text.is_word(closing - 1, "TRUE") and text.is_symbol(closing - 2, ",")
    return second or text.is_word(closing + 1, "WITHIN")

"""The functions of Spark over several rows, by name: aggregates, and generators of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.sql_text.token_text import TokenText

if TYPE_CHECKING:
    from headrace.derived.state.aggregates import Kind


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


KINDS: dict[str, Kind] = {
    "count": "count", "count_if": "count", "sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max",
    "every": "min", "bool_and": "min", "some": "max", "any": "max", "bool_or": "max",
}  # fmt: skip
"""The aggregates whose value is kept for each group, by their names."""
OTHER_AGGREGATES = words(
    """any_value approx_count_distinct approx_percentile percentile_approx approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg collect_list collect_set collect_union bit_and bit_or bit_xor bitmap_construct_agg
    bitmap_or_agg bitmap_and_agg corr count_min_sketch covar_pop covar_samp first first_value last last_value
    grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kurtosis listagg string_agg max_by min_by median mode percentile
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy schema_of_json_agg schema_of_variant_agg skewness std stddev stddev_pop stddev_samp
    theta_sketch_agg theta_union_agg theta_intersection_agg tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer tuple_intersection_agg_double tuple_intersection_agg_integer
    try_avg try_sum var_pop var_samp variance vector_avg vector_sum"""
)

GENERATORS = words(
    """explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple flatten_outer
    variant_explode variant_explode_outer"""
)


def is_generator(text: TokenText, index: int) -> bool:
    """Return whether a token is the name of one of `GENERATORS` in a call."""
    return text.is_call(index) and text.tokens[index].name.lower() in GENERATORS


def is_aggregate_call(text: TokenText, index: int) -> bool:
    """Return whether a token is the name of one of `KINDS` in a call."""
    # LIKE ANY and LIKE SOME are no calls.
    is_call = (
        text.is_call(index) and not text.is_symbol(index - 1, ".") and not text.is_word(index - 1, "LIKE", "ILIKE")
    )
    return is_call and text.tokens[index].name.lower() in KINDS


def is_any_aggregate(text: TokenText, index: int) -> bool:
    """Return whether a token is the name of an aggregate function of Spark in a call, and not one over a window."""
    if not is_builtin_call(text, index) or text.is_word(after_call(text, index), "OVER"):
        return False
    name, with_schema = text.tokens[index].name.lower(), text.is_symbol(index - 1, ".")
    return name in OTHER_AGGREGATES or (name in KINDS if with_schema else is_aggregate_call(text, index))


def is_builtin_call(text: TokenText, index: int) -> bool:
    """Return whether a token is the name of a function of Spark in a call, also with its schema: builtin.max(x)."""
    return text.is_call(index) and (not text.is_symbol(index - 1, ".") or text.is_word(index - 2, "BUILTIN"))


def after_call(text: TokenText, index: int) -> int:
    """Return the index after a call, its WITHIN GROUP, its FILTER, and IGNORE NULLS or RESPECT NULLS."""
    after = text.after(index + 1)
    for word in ("WITHIN", "FILTER"):
        opening = after + 1 + (word == "WITHIN")
        if text.is_word(after, word) and text.is_symbol(opening, "("):
            after = text.after(opening)
    # An alias can be one of the words.
    return after + 2 * (text.is_word(after, "IGNORE", "RESPECT") and text.is_word(after + 1, "NULLS"))

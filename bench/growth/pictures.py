"""Pictures of growth: the time and the memory of steps against size, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path


def draw(file: Path, title: str, unit: str, curves: Mapping[str, tuple[list[int], list[float], list[float]]]) -> None:
    """Draw the curves into a file.

    Args:
        curves: the sizes, seconds and peaks of memory in MB, by step.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(12, 5), width_ratios=(3, 2), layout="constrained")
    for what, (sizes, seconds, peaks) in curves.items():
        times.loglog(sizes, [1000 * each for each in seconds], marker="o", label=what)
        memory.semilogx(sizes, peaks, marker="o")
    longest = max((sizes for sizes, _, _ in curves.values()), key=len)
    reference = max(seconds[0] for sizes, seconds, _ in curves.values() if len(sizes) == len(longest))
    begin = longest[0] * math.log(longest[0])
    times.loglog(
        longest,
        [1000 * reference * size * math.log(size) / begin for size in longest],
        color="grey",
        linestyle="--",
        label="slope of n log n",
    )
    times.set_title(f"{title}: time")
    times.set_ylabel("ms")
    memory.set_title("peak resident memory")
    memory.set_ylabel("MB")
    memory.set_ylim(bottom=0)
    for axes in (times, memory):
        axes.set_xlabel(unit)
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(file, dpi=80, metadata={"Software": None})
    pyplot.close(figure)

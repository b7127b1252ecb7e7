"""Measured points, the exponents fitted to them, and the result of a benchmark of growth."""

from __future__ import annotations

import json
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.growth.pictures import draw
from bench.measure import Ratio, Result

DOCUMENTS = Path(__file__).parents[2] / "docs" / "images"
_DATA = DOCUMENTS / "growth.json"
_REPEATS = 5
# Times below this are fixed costs of a call.
_FLOOR_SECONDS = 0.002
# The exponent of n log n with some noise: a quadratic step has 1.8.
_BOUND = 1.2
_FITTED = 4


@dataclass(frozen=True)
class Point:
    """A step at one size.

    Attributes:
        what: the step.
        size: the number of partitions, channels, streams, tables or rows.
        seconds: the median time of the step.
        peak_mb: the peak of the process's resident memory during the step, in MB.
    """

    what: str
    size: int
    seconds: float
    peak_mb: float


def sizes(largest: float, count: int, factor: float = math.sqrt(10)) -> list[int]:
    """Return ``count`` sizes up to the largest, each ``factor`` times the one before."""
    return [max(2, round(largest / factor**power)) for power in reversed(range(count))]


def timed(what: str, size: int, run: Callable[[], object], repeats: int = _REPEATS) -> Point:
    """Return the median time of a step that can be repeated, and the peak of memory."""
    _reset_peak()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return Point(what, size, statistics.median(taken), _peak_mb())


def exponent(curve: list[Point], fitted: int = _FITTED) -> float:
    """Return the exponent of size with which the time of the ``fitted`` largest sizes grows."""
    return _slope(curve[-fitted:], lambda point: max(point.seconds, _FLOOR_SECONDS))


def _n_log_n(curve: list[Point], fitted: int = _FITTED) -> float:
    """Return the exponent with which n log n grows there."""
    return _slope(curve[-fitted:], lambda point: point.size * math.log(point.size))


def result(name: str, title: str, unit: str, points: Iterable[Point], scale: float) -> Result:
    """Return the result of a benchmark of growth. At full scale, write its data and its picture into docs/images.

    Args:
        name: the key of the data, and a part of the picture's name.
        unit: what the sizes count.
    """
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.what, []).append(point)
    ratios = []
    figures = {}
    for what, curve in found.items():
        curve.sort(key=lambda point: point.size)
        measured = "; ".join(f"{point.size:,}: {_shown(point.seconds)}, {point.peak_mb:.0f} MB" for point in curve)
        last = exponent(curve, 2) / _n_log_n(curve, 2)
        figures[what] = f"{measured}; exponent / exponent of n log n between the two largest: {max(0.0, last):.2f}"
        growth = exponent(curve) / _n_log_n(curve)
        ratios.append(Ratio(f"{what}: exponent / exponent of n log n", growth, _BOUND, at_most=True))
    if scale == 1:
        DOCUMENTS.mkdir(exist_ok=True)
        data = json.loads(_DATA.read_text()) if _DATA.exists() else {}
        data[name] = [asdict(point) for curve in found.values() for point in curve]
        _DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        draw(DOCUMENTS / f"growth-{name}.png", title, unit, _lines(found))
    return Result(
        f"growth: {title}",
        figures,
        ratios,
        f"By number of {unit}: the median time, and the peak of the process's resident memory. The exponents are "
        f"fitted to the {_FITTED} largest sizes, with times below {1000 * _FLOOR_SECONDS:.0f} ms counted as that.",
    )


def _lines(curves: dict[str, list[Point]]) -> dict[str, tuple[list[int], list[float], list[float]]]:
    return {
        what: ([p.size for p in curve], [p.seconds for p in curve], [p.peak_mb for p in curve])
        for what, curve in curves.items()
    }


def _slope(curve: list[Point], value: Callable[[Point], float]) -> float:
    sizes_ = [math.log(point.size) for point in curve]
    return float(np.polyfit(sizes_, [math.log(value(point)) for point in curve], 1)[0])


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:.1f} ms"


def _reset_peak() -> None:
    """Let the kernel forget the peak of resident memory; where it cannot, peaks are those of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_mb() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

"""The lag of consumers and tunnels while it is watched: when it will be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import EXIT_INTERRUPTED, main
from headrace.cli.watching import CatchUp
from headrace.model.tunnels.lag import Lag
from headrace.testing.reading import drain
from tests.clocks import patch_time


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(*lags: Lag, seconds: float = 10.0) -> CatchUp:
    clock = Clock()
    catch_up = CatchUp(clock)
    for lag in lags:
        catch_up.note(lag)
        clock.now += seconds
    return catch_up


def test_a_falling_lag_has_a_rate_and_an_end() -> None:
    catch_up = watched(Lag(1000), Lag(700), Lag(600))
    assert catch_up.facts() == {"lag_decrease_per_second": 20.0, "eta_seconds": 30.0}
    assert str(catch_up) == ", falls by 20.0 rows/s, done in 30 s"


def test_a_growing_lag_has_no_end() -> None:
    catch_up = watched(Lag(600), Lag(700))
    assert catch_up.facts() == {"lag_decrease_per_second": -10.0, "eta_seconds": None}
    assert str(catch_up) == ", grows by 10.0 rows/s"


@pytest.mark.parametrize("lags", [(Lag(5),), (Lag(5), Lag(5)), (Lag(5), Lag(2, unknown=1)), (Lag(5), Lag(0))])
def test_without_a_known_change_nothing_is_said(lags: tuple[Lag, ...]) -> None:
    assert str(watched(*lags)) == ""


def test_the_rate_is_that_of_the_last_30_seconds() -> None:
    assert watched(Lag(9000), Lag(8000), Lag(700), Lag(600), Lag(500), Lag(400)).rows_per_second == 10.0
    assert watched(*[Lag(900), *[Lag(300)] * 5]).rows_per_second == 0.0


def test_a_tunnel_is_watched_until_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = str(tmp_path / "shop")
    with headrace.open(address, create=True) as store:
        table = store.create_table("orders", pa.schema([("id", pa.string())]), ["id"])
        tunnel = store.create_tunnel("orders", "stats", "Stream")
        table.put([{"id": "a"}, {"id": "b"}])
        looks = 0

        def sleep(seconds: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise KeyboardInterrupt
            drain(tunnel)

        patch_time(monkeypatch, "headrace.cli.watching", sleep=sleep)
        assert main(["tunnel", "describe", "stats", "--watch", "-s", address]) == EXIT_INTERRUPTED
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("stats: lag 2, ")
    assert second.startswith("stats: lag 0, 0.0 s behind")

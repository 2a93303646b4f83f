"""A small day of ``benchmarks/simulation.py``: many people, few GPUs, nothing lost."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks import simulation
from benchmarks.simulated_strategies import Ours


def _day(strategy, **more):
    options = {"people": 40, "gpus": 3, "days": 1, "seed": 3, "hours": 1.0, "out": None}
    return simulation.simulate(Namespace(strategy=strategy, **options | more))


@pytest.fixture
def worlds(monkeypatch):
    """The worlds that are made, to be looked at after the day."""
    made = []

    class Seen(Ours):
        async def end(self):
            snapshot = self.controller.metrics_snapshot()
            made.append((snapshot, [*self.agent.saved.values()]))
            await super().end()

    monkeypatch.setattr(simulation, "Ours", Seen)
    return made


def test_day_under_pressure_loses_nothing_and_serves_more_than_killing(worlds):
    ours = _day("pressure")
    killing = _day("kill")
    assert ours["lost"] == 0 < killing["lost"]
    assert ours["worked_gpu_hours"] > killing["worked_gpu_hours"]
    assert ours["gave_up"] <= killing["gave_up"]
    ((snapshot, saved),) = worlds
    assert snapshot.counters.causes["pressure"] > 0
    assert snapshot.counters.causes["idle"] > 0
    assert snapshot.counters.waits["served"].count > 0
    assert ours["suspends"] == snapshot.counters.operations["suspend", "ok"]
    assert len(saved) >= snapshot.phases["suspended"] > 0
    assert snapshot.gpu_seconds > 0


def test_same_seed_is_the_same_day(worlds):
    first, second = _day("idle", people=10, gpus=1), _day("idle", people=10, gpus=1)
    assert first["points"] == second["points"]
    assert first["wait_all_seconds"] == second["wait_all_seconds"]
    assert [each[0].counters.causes["pressure"] for each in worlds] == [0, 0]

"""A small day of ``benchmarks/simulation.py``: many people, few GPUs, nothing lost."""

from argparse import Namespace

import pytest

from benchmarks import simulation
from benchmarks.simulated_strategies import Ours


def _day(strategy, **more):
    options = {"people": 40, "gpus": 3, "days": 1, "seed": 3, "hours": 1.0, "out": None}
    options |= {"shared": False, "seats": 1, "vram_gb": 12.0}
    options |= {"beat": 300.0, "room_after": 60.0}
    options |= {"overlooked": 0.0, "mistaken": 0.0}
    options |= {"spot": 0, "drain": False, "save_every": 0.0}
    return simulation.simulate(Namespace(strategy=strategy, **options | more))


def _shared_day(strategy, **more):
    """The same on cards that are shared, and whose memory has an end."""
    cards = {"shared": True, "gpus": 1, "seats": 3, "card_gb": 80.0, "host_gb": 512.0}
    people = {"people": 15, "vram_gb": 30.0, "beat": 30.0}
    return _day(strategy, **people | cards | more)


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


@pytest.mark.long
def test_naps_serve_more_than_killing_and_lose_nobody():
    naps, killing = _shared_day("naps"), _shared_day("kill")
    assert naps["lost"] == 0 < killing["lost"]
    assert naps["hours_computed"] > killing["hours_computed"]
    assert naps["people_served"] > killing["people_served"]
    assert naps["woken"] > 0
    assert naps["woken_room"] >= naps["thrashed"]
    assert naps["naps"] >= naps["woken"]
    for day in (naps, killing):
        hours = day["card_hours"]
        assert hours["worked"] <= hours["seated"] <= 24
        assert hours["memory_idle"] <= hours["memory_held"] <= hours["seated"]


@pytest.mark.long
def test_host_memory_that_is_short_refuses_naps():
    day = _shared_day("naps", host_gb=20.0, people=8)
    assert day["naps_failed"] > 0
    assert day["lost"] == 0


@pytest.mark.long
def test_save_points_and_drains_lose_no_more_work_with_a_node():
    day = {"gpus": 6, "spot": 1, "people": 15, "beat": 300.0, "seed": 1}
    nothing, unsaved = _day("nothing", **day), _day("naps", **day)
    saved = _day("naps", save_every=900.0, **day)
    drained = _day("naps", save_every=900.0, drain=True, **day)
    days = (nothing, unsaved, saved, drained)
    lost = [each["spot"]["all"]["lost_minutes"] for each in days]
    assert lost[0] >= lost[1] >= lost[2] >= lost[3]
    assert lost[0] > lost[2]
    assert saved["spot"]["all"]["nothing_back"] < unsaved["spot"]["all"]["nothing_back"]
    assert unsaved["save_points"] == 0 < saved["save_points"]
    assert unsaved["written_gb"] < saved["written_gb"]
    assert drained["spot_drained"] > 0
    for each in days:
        whole, *parts = each["spot"].values()
        for name in ("ended", "lost_work", "nothing_back"):
            assert whole[name] == sum(part[name] for part in parts)
        assert whole["ended"] == len(each["spot_lost_minutes"])
        assert whole["nothing_back"] <= whole["lost_work"] <= whole["ended"]
        assert whole["lost_minutes"] == pytest.approx(
            sum(each["spot_lost_minutes"]), abs=0.1 * whole["ended"]
        )

"""What NVIDIA's library tells of a session's GPUs: known, or missing, never made up."""

from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.sampling.gpu import samples_of
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.support import nvml

SCENES = {
    "idle": (nvml.Recorded, [nvml.IDLE_PID]),
    "busy": (nvml.Recorded, [nvml.BUSY_PID]),
    "two": (nvml.TwoCards, [nvml.BUSY_PID]),
    "mig": (nvml.Divided, [nvml.IDLE_PID, nvml.BUSY_PID]),
    "lost": (nvml.LostCard, [nvml.IDLE_PID]),
    "missing": (nvml.NotSupported, [nvml.IDLE_PID]),
    "shared": (nvml.Shared, [nvml.BUSY_PID]),
    "shared-idle": (nvml.SharedIdle, [nvml.BUSY_PID]),
    "none": (nvml.NoDriver, [nvml.BUSY_PID]),
}


def see(scene: str):
    library, pids = SCENES[scene]
    return samples_of(Nvml(library(), driver=Path("/none")).measure(0), pids)


def test_an_idle_card_is_known_to_do_nothing_and_its_memory_is_told():
    (card,) = see("idle")
    assert card.sm_percent == 0
    assert card.memory > 800 << 20
    assert card.name == "NVIDIA H200"
    assert len(card.uuid) == 32
    assert card.instance is None


def test_a_busy_card_is_told_in_percent_of_the_time():
    (card,) = see("busy")
    assert card.sm_percent == 86
    assert card.memory_percent == pytest.approx(21, abs=0.1)
    assert card.memory == 1050673152


def test_several_cards_are_told_apart():
    first, second = see("two")
    assert first.uuid != second.uuid
    assert first.sm_percent == second.sm_percent == 86


def test_instances_of_a_divided_card_are_told_apart_and_the_busy_one_is_never_idle():
    first, second = see("mig")
    assert first.uuid == second.uuid
    assert (first.instance, second.instance) == (1, 2)
    assert first.memory < second.memory
    assert second.sm_percent is None or second.sm_percent > 40


def test_with_a_lost_card_nothing_is_known_of_any():
    assert see("lost") is None


def test_a_missing_value_is_missing_never_zero():
    (card,) = see("missing")
    assert card.sm_percent is card.memory is card.memory_percent is None


def test_who_works_on_a_shared_card_is_not_guessed():
    (card,) = see("shared")
    assert card.sm_percent is None


def test_on_a_shared_card_that_does_nothing_nobody_works():
    (card,) = see("shared-idle")
    assert card.sm_percent == 0


def test_a_session_without_a_card_is_not_given_one():
    assert see("none") == []

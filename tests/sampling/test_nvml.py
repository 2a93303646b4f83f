"""Cards as they answer, and what becomes of a session when they do not."""

import threading

import pytest

from jupyterhub_gpu_reclaim.sampling.gpu import samples_of
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.support import nvml

BUSY, IDLE = [nvml.BUSY_PID], [nvml.IDLE_PID]


def sample(library, pids):
    return samples_of(Nvml(library).measure(1_700_000_000.0), pids)


def test_a_card_tells_who_works_and_who_only_holds_memory():
    (busy,) = sample(nvml.Recorded(), BUSY)
    assert (busy.uuid, busy.name) == (nvml.UUID, "NVIDIA H200")
    assert busy.sm_percent == 86
    (idle,) = sample(nvml.Recorded(), IDLE)
    assert (idle.sm_percent, idle.memory) == (0, 910163968)


def test_a_session_of_two_processes_has_their_sum_but_no_more_than_the_card():
    (both,) = sample(nvml.Recorded(), BUSY + IDLE)
    assert both.memory == 910163968 + 1050673152
    assert both.sm_percent == 86


def test_a_session_without_a_card_is_known_to_have_none():
    assert sample(nvml.Recorded(), [1]) == []
    assert sample(nvml.NoDriver(), BUSY) == []


@pytest.mark.parametrize("library", [nvml.SilentAboutIdle(), nvml.VanishedPid()])
def test_who_is_left_out_of_a_measurement_did_nothing(library):
    (idle,) = sample(library, IDLE)
    assert idle.sm_percent == 0
    (busy,) = sample(library, BUSY)
    assert busy.sm_percent == 86


def test_no_measurement_at_all_is_idleness_only_of_an_idle_card():
    assert sample(nvml.NoMeasurement(), IDLE)[0].sm_percent is None
    assert sample(nvml.IdleCard(), IDLE)[0].sm_percent == 0


def test_what_a_card_does_not_support_is_missing_never_zero():
    (idle,) = sample(nvml.NotSupported(), IDLE)
    assert idle.sm_percent is idle.memory is None


@pytest.mark.parametrize(
    "library", [nvml.LostCard(), nvml.LostInTheMiddle(), nvml.BrokenDriver()]
)
def test_a_card_that_does_not_answer_leaves_every_session_unknown(library):
    assert sample(library, BUSY) is None
    assert sample(library, [1]) is None


def test_several_cards_are_told_apart():
    first, second = sample(nvml.TwoCards(), BUSY)
    assert first.uuid != second.uuid
    assert first.sm_percent == second.sm_percent == 86


def test_what_works_on_a_divided_card_is_never_idle():
    cards = Nvml(nvml.Divided()).measure(0)
    assert cards[0].divided
    (card,) = samples_of(cards, BUSY + IDLE)
    assert card.sm_percent is None or card.sm_percent > 40
    assert card.memory == 12


def test_a_client_of_mps_is_listed_and_its_work_is_not_taken_for_idleness():
    (card,) = Nvml(nvml.Shared()).measure(0)
    uses = {use.pid: use for use in card.processes}
    assert uses[nvml.BUSY_PID].mps
    assert uses[nvml.BUSY_PID].sm_percent is None
    assert sample(nvml.Shared(), BUSY)[0].sm_percent is None
    assert not uses[nvml.Shared.server].mps
    assert sample(nvml.SharedIdle(), BUSY)[0].sm_percent == 0


def test_a_container_without_the_library_does_not_know_the_machines_cards(tmp_path):
    driver = tmp_path / "version"
    source = Nvml(nvml.NoLibrary(), driver=driver)
    assert source.measure(0) == []
    driver.touch()
    assert source.measure(0) is None


@pytest.mark.parametrize("library", [nvml.BrokenDriver, nvml.LostCard])
def test_a_silence_is_logged_once(library, caplog):
    source = Nvml(library())
    for _ in range(3):
        source.measure(0)
    assert len(caplog.records) == 1


def test_a_look_that_hangs_makes_the_next_one_unknown_and_no_second_thread():
    asked, go_on = threading.Event(), threading.Event()

    class Hanging(nvml.Recorded):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            asked.set()
            go_on.wait(10)
            return 1

    source = Nvml(Hanging())
    thread = threading.Thread(target=lambda: source.measure(0))
    thread.start()
    asked.wait(10)
    assert source.measure(0) is None
    go_on.set()
    thread.join()
    assert source.measure(0)


def test_a_driver_that_comes_back_is_opened_again():
    class Mended(nvml.Recorded):
        broken = True

        def nvmlInit(self) -> None:  # noqa: N802
            if self.broken:
                nvml.BrokenDriver().nvmlInit()

    library = Mended()
    source = Nvml(library)
    assert source.measure(0) is None
    library.broken = False
    assert source.measure(0)
    source.close()


def test_the_real_library_answers_or_says_that_there_is_no_card():
    source = Nvml()
    assert isinstance(source.measure(0), list)
    source.close()

"""A session with a card, through the real agent and CRIU; card and driver are false.

The program ends when it runs while its card is away, so each of these tests also shows
that it does not.
"""

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from jupyterhub_gpu_reclaim.linux import procfs
from tests.support.agent import in_step, wait_for
from tests.support.fake_cards import computes, holders, killed_while_it_moves
from tests.support.long_stories import but

pytestmark = pytest.mark.shares_an_agent(card=True)

#: Of tests whose agent is started in another way.
own_agent = pytest.mark.shares_an_agent(False)


@pytest.fixture
def session(start):
    place = start()
    computes(place)
    return place


def test_a_session_is_emptied_saved_and_filled_in_another_place(agent, session, places):
    assert holders(session) == 2
    agent.captured(session, "cp")
    assert holders(session) == 0
    agent.release(session, "cp")

    place = agent.come_back(places("hold"), "cp")

    computes(place)
    assert holders(place) == 1  # the child has no use for it
    agent.captured(place, "cp-2", 2)


def test_store_that_is_full_in_the_middle_gives_the_card_its_memory_back(
    agent, session, small_store
):
    events = agent.capture(session, "cp")
    assert events[-1]["failure"]["code"] == "store_full"
    begun = [one["step"]["step"] for one in events if one.get("step")]
    assert {"gpu", "dump"} <= {*begun}
    computes(session)
    assert holders(session)
    left = [path.name for path in small_store.rglob("*") if path.is_file()]
    assert left == ["identity"]


def test_agent_killed_while_memory_moves_out_lets_no_program_run_without_it(
    agent, driver, start
):
    session = start("large")
    computes(session)
    killed_while_it_moves(agent, driver, "2", lambda: agent.capture(session, "cp"))
    assert session.alive
    agent.start()
    computes(session)
    assert agent.tree(session)["state"] == "running"
    assert holders(session)


@pytest.mark.parametrize("step", but(["gpu", "dump", "commit"], "gpu"))
def test_agent_killed_in_a_capture_the_next_one_fills_the_card(agent, start, step):
    # A child that just gives up its devices may end with the agent (linux/ptrace).
    session = start("alone")
    computes(session, "p")

    agent.capture(session, "cp", until=in_step(step, agent.kill))
    agent.start()
    if agent.get("/v1/checkpoints").json():
        agent.post(f"/v1/sessions/{session.incarnation}/thaw")
    computes(session, "p")
    assert agent.tree(session)["state"] == "running"


def test_a_saved_session_does_not_come_back_without_its_card_nor_in_half(
    agent, session, places, monkeypatch
):
    """Not where its card is not, and not where the agent is killed in its return."""
    agent.suspend(session, "cp")
    agent.kill()
    with monkeypatch.context() as without:
        without.delenv("LD_LIBRARY_PATH")
        agent.start()
    place = places("hold")
    failure = agent.restore(place, "cp")[-1]["failure"]
    assert failure["code"] == "gpu_mismatch"
    assert "Fake GPU" in failure["message"]
    assert len(agent.get("/v1/checkpoints").json()) == 1
    agent.kill()
    agent.start()

    agent.restore(place, "cp", until=in_step("gpu", agent.kill))
    agent.start()

    if agent.tree(place)["state"] != "running":
        agent.come_back(place, "cp")
    computes(place)
    assert holders(place) == 1


@own_agent
def test_what_the_driver_cannot_save_is_refused_and_goes_on(
    agent, monkeypatch, session
):
    agent.kill()
    monkeypatch.setenv("FAKE_CUDA_REFUSAL", "801")
    agent.start()
    failure = agent.capture(session, "cp")[-1]["failure"]
    assert failure["code"] == "gpu_unsupported"
    computes(session)
    assert holders(session) == 1  # the child has no use for it
    assert agent.get("/v1/checkpoints").json() == []


def test_a_child_that_is_forked_after_the_survey_gives_up_its_devices_too(
    agent, start, places
):
    """CRIU could not dump them; as little could the next capture, after a roll-back."""
    session = start("forks")
    computes(session)

    cancel = in_step("connections", lambda: agent.cancel(session))
    agent.capture(session, "cp", until=cancel)
    wait_for(lambda: agent.tree(session)["state"] == "running")
    computes(session, "pcl")
    assert holders(session) == 1

    agent.captured(session, "cp-2")
    assert holders(session) == 0
    agent.release(session, "cp-2")
    place = agent.come_back(places("hold"), "cp-2")
    computes(place, "pcl")


@own_agent
@pytest.mark.usefixtures("counting")
def test_a_program_that_begins_to_use_a_card_meanwhile_naps_as_well(agent, start):
    session = start("begins")
    computes(session, "p")
    for order, holding in (("nap", 0), ("wake", 2)):
        events = agent.events(f"/v1/sessions/{session.incarnation}/{order}", {})
        assert events[-1].get("tree"), events[-1]
        assert holders(session) == holding
    computes(session, "pi")


@pytest.mark.long
def test_a_program_that_the_driver_does_not_know_is_refused_in_the_end(agent, start):
    session = start("deaf")
    wait_for(
        lambda: any(
            held_by(one.pid) and "/libcuda.so" in procfs.text(one.pid, "maps")
            for one in session.tree.processes
        )
    )
    failure = agent.capture(session, "cp")[-1]["failure"]
    assert failure["code"] == "gpu_begun"
    computes(session, "p")

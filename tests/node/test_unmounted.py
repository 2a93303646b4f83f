"""A real agent whose store is not mounted for a while: nothing is done or lost."""

import shutil

import pytest

from tests.support.agent import goes_on, wait_for


@pytest.fixture
def volume(agent, folder):
    """The store's folder, as a volume that comes and goes."""
    root, aside = folder / "store", folder / "not mounted"

    class Volume:
        def unmount(self):
            root.rename(aside)
            root.mkdir(mode=0o700)

        def mount(self):
            assert [each for each in root.rglob("*") if each.is_file()] == []
            for each in root.iterdir():
                each.rmdir()
            root.rmdir()
            aside.rename(root)

    return Volume()


def how(agent):
    return agent.get("/v1/status").json()


def faults(agent):
    return {one["code"]: one["message"] for one in how(agent)["findings"]}


def test_nothing_is_suspended_resumed_or_deleted_until_it_is_back(
    agent, counter, places, volume
):
    agent.suspend(counter, "cp-1")
    assert not counter.alive
    second = agent.come_back(places("hold"), "cp-1")
    assert "store_absent" not in faults(agent)

    volume.unmount()
    assert "store_absent" in faults(agent)
    assert how(agent)["store_free"] is None
    refused = agent.capture(second, "cp-2", 2)[-1]
    assert refused.get("code", refused.get("failure", {}).get("code")) == "store_absent"
    assert goes_on(second)
    holding = places("hold")
    refused = agent.restore(holding, "cp-1")[-1]
    assert refused.get("code", refused.get("failure", {}).get("code")) == "store_absent"
    assert agent.get("/v1/checkpoints").json()["code"] == "store_absent"
    assert agent.post("/v1/checkpoints/cp-1/discard").json()["code"] == "store_absent"

    # An agent that starts meanwhile, too, and one that has lost its folder.
    agent.kill()
    agent.start()
    assert f"{agent.store} holds no store. Mount" in faults(agent)["store_absent"]
    agent.kill()
    shutil.rmtree(agent.folder / "state")
    agent.start()
    assert "store_absent" in faults(agent)

    volume.mount()
    wait_for(lambda: "store_absent" not in faults(agent))
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] == ["cp-1"]
    agent.captured(second, "cp-2", 2)


def test_why_an_agent_is_not_ready_is_in_its_log_once_per_change(agent, volume):
    """The kubelet asks every ten seconds, and has no token: it hears no more."""
    assert agent.get("/readyz").status_code == 200
    volume.unmount()
    assert [agent.get("/readyz").status_code for _ in range(3)] == [503] * 3
    volume.mount()
    assert [agent.get("/readyz").status_code for _ in range(2)] == [200] * 2
    told = agent.log.read_text()
    assert told.count("- not ready: The store of suspended sessions is not there") == 1
    assert told.count(": - ready\n") == 1
    assert "/readyz" not in told


def test_agent_whose_state_folder_is_not_mounted_any_more_says_so(agent, folder):
    aside = (folder / "state").rename(folder / "state not mounted")
    (folder / "state").mkdir(mode=0o700)
    told = [one["message"] for one in how(agent)["findings"]]
    assert any("state folder is not there any more" in each for each in told)
    (folder / "state").rmdir()
    aside.rename(folder / "state")
    told = [one["message"] for one in how(agent)["findings"]]
    assert not any("state folder" in each for each in told)


def test_volume_that_goes_while_a_session_is_saved_lets_it_go_on(
    agent, counter, volume
):
    events = agent.capture(
        counter, "cp-1", until=lambda event: "dump" in str(event.get("step"))
    )
    assert events[-1]["failure"] is None
    volume.unmount()
    last = agent.capture(counter, "cp-1")[-1]
    assert last["failure"]["code"] in {"store_absent", "store_failed"}, last
    assert goes_on(counter)
    shutil.rmtree(agent.folder / "store")  # what was written below, before it was seen
    (agent.folder / "store").mkdir(mode=0o700)
    volume.mount()

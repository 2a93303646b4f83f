"""A session moves from one container to another, with another address and name."""

import pytest
from websockets.sync.client import connect

from jupyterhub_gpu_reclaim.linux import processes
from tests.support.agent import PATIENCE, wait_for
from tests.support.containers import PLACEMENT
from tests.support.long_stories import but

IMAGE = "registry.example/notebook@sha256:" + "ab" * 32
TEMPORARY = ("/scratch/mine", "/scratch/data/mine")
OTHER = "registry.example/notebook@sha256:" + "cd" * 32


def type_in(jupyter, terminal: str, line: str, until: str) -> str:
    url = jupyter.url.replace("http", "ws") + f"terminals/websocket/{terminal}"
    headers = {"Authorization": f"token {jupyter.TOKEN}"}
    with connect(url, additional_headers=headers, open_timeout=PATIENCE) as socket:
        socket.send(f'["stdin", "{line}\\r"]')
        shown = ""
        while until not in shown:
            shown += str(socket.recv(PATIENCE))
    return shown


@pytest.mark.parametrize("moves", but([1, 2], 1))
def test_session_moves_to_another_container_and_again(agent, jupyter, pods, moves):
    kernel = jupyter.start_kernel()
    terminal = jupyter.client.post("api/terminals").json()["name"]
    type_in(jupyter, terminal, "cd /srv && word=melon && echo is-$word", "is-melon")
    jupyter.run(kernel, "import os; x = [1, 2, 3]; pid = os.getpid()")
    jupyter.run(kernel, "log = open('/var/log-of-ann', 'w'); log.write('on the root ')")
    jupyter.run(kernel, "log.flush(); os.remove('/etc/issue')")
    jupyter.run(kernel, "_ = open('/dev/shm/mine', 'w').write('in memory')")
    for name in TEMPORARY:
        jupyter.run(kernel, f"_ = open('{name}', 'w').write('{name}')")
    pid = jupyter.run(kernel, "pid")
    assert int(pid) > 300  # although the init has an entry point of the image above it
    for generation in range(1, moves + 1):
        checkpoint, old = f"cp-{generation}", jupyter.place

        captured = old.call(
            agent, "capture", checkpoint=checkpoint, generation=generation, image=IMAGE
        )
        assert captured[-1].get("checkpoint"), captured[-1]
        if generation == 1:
            agent.kill()
            agent.start(PLACEMENT)
            assert old.seen(agent)["state"] == "captured"
        released = old.order(agent, "release", {"checkpoint": checkpoint})
        assert released.status_code == 204
        assert not old.alive
        old.delete()
        if generation == 1:
            small = pods("hold", home=jupyter.home, memory=48 << 20)
            other = pods("hold", home=jupyter.home)
            for place, image, why in (
                (small, IMAGE, "memory_limit"),
                (other, OTHER, "image_mismatch"),
            ):
                refused = place.call(
                    agent, "restore", checkpoint=checkpoint, image=image
                )
                assert refused[-1]["failure"]["code"] == why
                place.delete()
        new = pods("hold", home=jupyter.home)
        restored = new.call(agent, "restore", checkpoint=checkpoint, image=IMAGE)
        assert restored[-1].get("tree"), restored[-1]
        assert restored[-1]["tree"]["pod"] == new.uid

        assert new.ip != old.ip
        jupyter.move(new)
        assert [one["id"] for one in jupyter.kernels()] == [kernel]
        assert jupyter.run(kernel, "x, os.getpid()") == f"([1, 2, 3], {pid})"
        assert jupyter.run(kernel, "os.uname().nodename") == f"'{new.host}'"
        assert jupyter.run(kernel, "os.path.exists('/etc/issue')") == "False"
        assert jupyter.run(kernel, "open('/dev/shm/mine').read()") == "'in memory'"
        for name in TEMPORARY:  # a mount in a mount, beside a secret mounted there
            assert jupyter.run(kernel, f"open('{name}').read()") == f"'{name}'"
        secret = jupyter.run(kernel, "open('/scratch/secrets/my/token').read()")
        assert secret == "'of a service account'"
        jupyter.run(kernel, f"_ = log.write('{generation} '); log.flush()")
        shown = type_in(jupyter, terminal, "echo still-$word in $PWD", "still-melon")
        assert "/srv" in shown
    text = jupyter.run(kernel, "open('/var/log-of-ann').read()")
    written = "".join(f"{number} " for number in range(1, moves + 1))
    assert text == f"'on the root {written}'"
    sample = next(
        one
        for one in agent.get("/v1/samples").json()
        if one["incarnation"] == jupyter.place.incarnation
    )
    assert (sample["pod"], sample["problem"]) == (jupyter.place.uid, "")
    assert [one["id"] for one in sample["kernels"]] == [kernel]


def test_pod_that_claims_anothers_session_is_not_touched(agent, pods, folder):
    home = folder / "home"
    home.mkdir()
    mine = pods("hold", home=home)
    thief = pods("hold", home=home, incarnation=mine.incarnation)

    def seen() -> set[str]:
        trees = agent.get("/v1/sessions").json()
        assert {one["incarnation"] for one in trees} <= {mine.incarnation}
        return {one["pod"] for one in trees}

    wait_for(lambda: seen() == {mine.uid, thief.uid})
    assert agent.get(f"/v1/sessions/{mine.incarnation}").status_code == 404
    assert mine.seen(agent)["init_pid"] == mine.init_pid
    assert seen() == {mine.uid}  # now that it is known whose it is

    assert mine.order(agent, "kill").status_code == 204

    assert not mine.alive
    assert thief.alive


def test_session_that_could_look_at_the_agents_processes_is_refused(
    agent, pods, folder
):
    """CAP_SYS_PTRACE, as py-spy and gdb want it, unless the administrator trusts it."""
    home = folder / "home"
    home.mkdir()
    # without children, whose ends may interrupt CRIU (and it gives the attempt up)
    count = "n=0; while :; do n=$((n + 1)); echo $n > /home/ann/n; done"
    options = {"home": home, "more_capabilities": ("CAP_SYS_PTRACE",)}
    old = pods("start", "sh", "-c", count, **options)
    wait_for((home / "n").exists)
    refused = old.call(agent, "capture", checkpoint="cp", generation=1, image=IMAGE)
    failure = refused[-1]["failure"]
    assert failure["code"] == "dangerous_rights"
    assert "CAP_SYS_PTRACE" in failure["message"]
    assert "AgentApp.trusted_capabilities" in failure["hint"]

    agent.kill()
    agent.start(PLACEMENT, "--AgentApp.trusted_capabilities=SYS_PTRACE")
    saved = old.call(agent, "capture", checkpoint="cp", generation=1, image=IMAGE)
    assert saved[-1].get("checkpoint"), saved[-1]
    # Its init is its user's own, so that it stands, too, and goes on with the others.
    states = {one.name: one.state for one in processes.inhabitants(old.tree.init)}
    assert set(states.values()) - {"Z"} == {"T"}, states
    assert old.order(agent, "thaw").status_code == 204
    before = (home / "n").read_text()
    wait_for(lambda: (home / "n").read_text() not in {before, ""})
    assert old.tree.init.state != "T"

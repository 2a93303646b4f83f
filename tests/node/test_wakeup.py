"""What comes back is not culled by the wall clock that went on without it (T11)."""

import contextlib
import socket
import time

import pytest

from jupyterhub_gpu_reclaim.node.jupyter.wake_up import WakeUp
from tests.support.agent import wait_for
from tests.support.served import here

#: Longer than what a busy machine takes for a capture and a restore, in which it stands
#: for longer than from one look of the culler to the next: one is due at the return.
CULL_AFTER = 8
CULL_EVERY = 1
#: The end of a resume.
LAST = ("answer", "done")


def resumed(agent, server, places, seconds: float = 0):
    """Suspend and resume; the new place, and what the resume has told."""
    agent.suspend(server.place, "cp")
    time.sleep(seconds)
    holding = places("hold")
    told = agent.restore(holding, "cp")
    assert told[-1].get("tree"), told[-1]
    return holding, told


@pytest.mark.long
def test_restore_kernel_idle_for_longer_than_its_culler_allows_lives(
    agent, jupyter, places
):
    server = jupyter(
        "--debug",
        f"--MappingKernelManager.cull_idle_timeout={CULL_AFTER}",
        f"--MappingKernelManager.cull_interval={CULL_EVERY}",
    )
    kernel = server.start_kernel()
    server.run(kernel, "x = 42")

    log = resumed(agent, server, places, CULL_AFTER)[0].output

    wait_for(lambda: "for kernels idle >" in log.read_text(errors="replace"))
    wait_for(lambda: "last_activity" in log.read_text(errors="replace"))
    assert [one["id"] for one in server.kernels()] == [kernel]
    assert server.run(kernel, "x") == "42"


@pytest.mark.long
def test_output_kept_for_a_disconnected_client_is_still_there(agent, jupyter, places):
    """The server keeps output for the session id of a client that went away."""
    server = jupyter()
    kernel = server.start_kernel()
    session = server.run_and_leave(
        kernel, "import time; time.sleep(2); print('buffered')"
    )
    wait_for(lambda: server.kernels()[0]["execution_state"] == "busy")
    wait_for(lambda: server.kernels()[0]["execution_state"] == "idle")

    resumed(agent, server, places)

    assert "buffered" in server.listen(kernel, session)


def test_restore_does_not_wait_for_a_kernel_that_computes(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    server.run_and_leave(kernel, "import time; time.sleep(120)")

    _, told = resumed(agent, server, places)

    steps = [event["step"] for event in told if event.get("step")]
    (answer,) = (step for step in steps if (step["step"], step["state"]) == LAST)
    # half a second of it the server is held, since an idle kernel would answer
    assert answer["seconds"] < 2.5
    assert server.kernels()[0]["execution_state"] == "busy"


def test_queue_of_a_server_that_names_thousands_of_terminals_stays_small():
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as stopped:
        address = here(stopped.getsockname()[1])
        with WakeUp(address) as wake:
            wake.queue({}, (str(number) for number in range(3000)))
            stopped.setblocking(False)
            with contextlib.ExitStack() as taken:
                count = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        taken.enter_context(stopped.accept()[0])
                        count += 1
    assert 100 < count <= 512

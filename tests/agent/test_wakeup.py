"""What comes back is not culled by the wall clock that went on without it (T11)."""

import time

import pytest

CULL_AFTER = 4


def suspend_and_resume(agent, server, places, seconds: float):
    agent.capture(server.place, "cp")
    agent.post(
        f"/v1/sessions/{server.place.incarnation}/release", {"checkpoint": "cp"}
    )
    time.sleep(seconds)
    holding = places("hold")
    ended = agent.restore(holding, "cp")[-1]
    assert ended["tree"], ended
    return holding


@pytest.mark.slow
def test_restore_kernel_idle_for_longer_than_its_culler_allows_lives(
    agent, jupyter, places
):
    server = jupyter(
        f"--MappingKernelManager.cull_idle_timeout={CULL_AFTER}",
        "--MappingKernelManager.cull_interval=1",
    )
    kernel = server.start_kernel()
    server.run(kernel, "x = 42")

    suspend_and_resume(agent, server, places, CULL_AFTER + 1)
    resumed = time.monotonic()

    while time.monotonic() - resumed < CULL_AFTER - 1:
        assert [one["id"] for one in server.kernels()] == [kernel]
        time.sleep(0.3)
    assert server.run(kernel, "x") == "42"


def test_restore_idle_kernel_counts_as_used_at_its_return(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    before = server.kernels()[0]["last_activity"]

    suspend_and_resume(agent, server, places, 0)

    after = server.kernels()[0]
    assert after["last_activity"] > before
    assert after["execution_state"] == "idle"
    assert server.run(kernel, "1") == "1"

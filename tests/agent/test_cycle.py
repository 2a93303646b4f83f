"""A session through the agent's HTTP calls: captured, released, brought back."""


def test_capture_release_restore_keeps_kernel_and_variables(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "import os; x = [1, 2, 3]; pid = os.getpid()")
    pid = server.run(kernel, "pid")

    captured = agent.capture(server.place, "cp-1")

    assert captured[-1]["checkpoint"]["id"] == "cp-1", captured[-1]
    assert agent.tree(server.place)["state"] == "captured"
    released = agent.post(
        f"/v1/sessions/{server.place.incarnation}/release", {"checkpoint": "cp-1"}
    )
    assert released.json()["state"] == "gone"
    assert not server.place.alive

    holding = places("hold")
    assert agent.tree(holding)["state"] == "holding"
    restored = agent.restore(holding, "cp-1")

    assert restored[-1]["tree"]["state"] == "running", restored[-1]
    assert [one["id"] for one in server.kernels()] == [kernel]
    assert server.run(kernel, "x, os.getpid()") == f"([1, 2, 3], {pid})"

"""A save point: the session stands still for a copy, and goes on."""

from __future__ import annotations

from tests.support.agent import wait_for


def _held(steps) -> float:
    """Seconds that the session stood still."""
    return steps[-1]["checkpoint"]["frozen_seconds"]


def test_session_goes_on_and_comes_back_as_it_was_when_it_was_saved(
    agent, jupyter, places
):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "x = [1, 2, 3]; import os; pid = os.getpid()")
    pid = server.run(kernel, "pid")

    saved = agent.save(server.place, "cp-1")

    assert saved[-1]["checkpoint"]["id"] == "cp-1", saved[-1]
    tree = agent.tree(server.place)
    assert (tree["state"], tree["origin"]) == ("running", "cp-1")
    assert server.run(kernel, "x.append(4); x") == "[1, 2, 3, 4]"

    server.place.kill()
    holding = places("hold")
    restored = agent.restore(holding, "cp-1")
    assert restored[-1]["tree"]["state"] == "running", restored[-1]
    assert server.run(kernel, "x, os.getpid()") == f"([1, 2, 3], {pid})"

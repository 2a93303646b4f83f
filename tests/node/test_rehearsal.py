"""What would not come back is not suspended: a real agent, real programs, real CRIU."""

import sys

import pytest

from tests.checkpoint.test_rehearsal import LIKE_A_USER, places_there
from tests.support.agent import goes_on, wait_for

pytestmark = pytest.mark.shares_an_agent

#: Holds a file that it could not open again, and counts.
HOLDER = f"""
import sys, time
file = open(sys.argv[1], "r+")
{LIKE_A_USER}
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


def steps_of(events: list[dict]) -> list[dict]:
    return [event["step"] for event in events if event.get("step")]


def release(agent, place, name: str) -> int:
    path = f"/v1/sessions/{place.incarnation}/release"
    return agent.post(path, {"checkpoint": name}).status_code


def test_session_that_comes_back_is_rehearsed_beside_the_rest(agent, counter, places):
    events = agent.capture(counter, "good")
    assert events[-1].get("checkpoint"), events
    steps = {step["step"]: step for step in steps_of(events)}
    assert steps["rehearsal"]["state"] == "done"
    began = [step["step"] for step in steps_of(events)]
    assert began.index("rehearsal") < began.index("commit")
    wait_for(lambda: not places_there(agent.popen.pid))
    assert release(agent, counter, "good") == 204
    place = places("hold")
    assert agent.restore(place, "good")[-1].get("tree")
    assert goes_on(place)


#: So many processes that they take a while to be made again.
MANY = """
import os, sys, time
for _ in range(100):
    if os.fork() == 0:
        while True:
            time.sleep(1000)
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


def test_rehearsal_is_called_off_with_its_capture(agent, places):
    """A user who comes back while the return is tried does not wait for its end."""
    place = places("start", sys.executable, "-I", "-S", "-c", MANY, env={})
    wait_for(lambda: place.output.stat().st_size)

    def begun(event) -> bool:
        return (event.get("step") or {}).get("step") == "rehearsal"

    agent.capture(place, "called-off", until=begun)
    path = f"/v1/sessions/{place.incarnation}/cancel"
    assert agent.post(path, {"checkpoint": "called-off"}).status_code == 204
    assert goes_on(place)
    assert agent.get("/v1/checkpoints").json() == []
    wait_for(lambda: not places_there(agent.popen.pid))

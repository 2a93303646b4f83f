"""Two services on one journal, as in a rolling update: real programs, one database.

The other one waits and says so, and takes over when the first has gone. That what is
saved stays so beside it is the simulator's to try: *a second service starts*.
"""

import contextlib
import os
import signal

import pytest
import requests

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from tests.support.hub import wait_until
from tests.support.service_program import ServiceProgram, preloaded

KEY = SessionKey("ada")


@pytest.fixture(scope="module")
def programs():
    return preloaded()


class Service(ServiceProgram):
    def get(self, path: str) -> requests.Response | None:
        """None where nobody listens."""
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self.url + path, timeout=60)
        return None

    def ready(self) -> bool:
        answer = self.get("readyz")
        return answer is not None and answer.status_code == 200

    def waits(self) -> bool:
        answer = self.get("readyz")
        return answer is not None and answer.json().get("code") == "journal_held"


@pytest.fixture
def service(tmp_path, programs):
    """Begins a service with a state folder of its own, on the one journal."""
    (tmp_path / "agent.token").write_text("token")
    made = []

    def begin(name: str) -> Service:
        (tmp_path / name).mkdir()
        made.append(
            Service(
                programs,
                tmp_path / name,
                f"--ReclaimService.journal_url=sqlite:///{tmp_path}/journal.sqlite",
                f"--ReclaimService.agent=unix:{tmp_path}/agent.sock",
                f"--ReclaimService.agent_token_file={tmp_path}/agent.token",
            )
        )
        return made[-1]

    yield begin
    for each in made:
        each.process.kill()
        each.process.join(60)


async def says_that_it_waits(second: Service, first: Service) -> None:
    assert second.get("healthz").text == first.get("healthz").text
    for path in ("readyz", "api/sessions", "metrics", "api/nothing"):
        answer = second.get(path)
        assert (answer.status_code, answer.json()["code"]) == (503, "journal_held")
    for path in ("", "sessions/ada/-", "nothing"):
        answer = second.get(path)
        assert answer.status_code == 503
        assert "Another service holds the journal" in answer.text
    assert second.get("static/live.js").status_code == 200
    client = ServiceClient(second.spawner)
    with pytest.raises(Unreachable) as caught:
        await client.plan_start(Placement(key=KEY, incarnation="i1"))
    client.close()
    assert caught.value.reason is Reason.JOURNAL_HELD
    assert "another one holds the journal" in second.told()


async def test_second_service_waits_says_so_and_takes_over_at_once(service):
    """How a lock is free again is told in ``controlplane/test_lock.py``."""
    first = service("first")
    wait_until(first.ready, 120, first.told)
    second = service("second")
    wait_until(second.waits, 120, second.told)
    await says_that_it_waits(second, first)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join(60)
    wait_until(second.ready, 120, second.told)


def test_service_whose_journal_another_one_has_taken_ends_itself(service, tmp_path):
    """As with a database whose locks hold nobody off, or that has let go of ours."""
    first = service("first")
    wait_until(first.ready, 120, first.told)
    (tmp_path / "journal.sqlite.lock").unlink()
    second = service("second")
    wait_until(second.ready, 120, second.told)
    wait_until(lambda: not first.process.is_alive(), 120, first.told)
    assert "The journal was lost" in first.told()
    assert second.ready()

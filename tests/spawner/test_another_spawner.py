"""Another project's spawner with the mixin before it, as the how-to has it."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from jupyterhub.spawner import Spawner
from jupyterhub.utils import subdomain_hook_idna
from tornado import web

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.models import StartPlan
from jupyterhub_gpu_reclaim.hub.spawner.known_servers import KnownServers
from jupyterhub_gpu_reclaim.hub.spawner.lifecycle import SessionLifecycle
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import SessionPlacement
from jupyterhub_gpu_reclaim.hub.spawner.refusal import StartRefused
from jupyterhub_gpu_reclaim.hub.spawner.state import (
    KEY,
    Choice,
    Location,
    Pointer,
    PointerPhase,
)
from tests.support.manual_clock import ManualClock

SUSPENDED = Pointer(
    phase=PointerPhase.SUSPENDED, checkpoint="c1", location=Location(name="box-1")
)
HOW_TO = Path(__file__).parents[2] / "docs/how-to/another-spawner.md"


class Boxes(Spawner):
    """A spawner whose state and ``will_resume`` are as in DockerSpawner."""

    box = ""

    @property
    def will_resume(self):
        return False

    async def start(self):
        self.box = "box-2"
        return ("127.0.0.1", self.port)

    async def stop(self, now=False):
        self.box = ""

    async def poll(self):
        return None if self.box else 0

    def get_state(self):
        return {**super().get_state(), "box": self.box}

    def load_state(self, state):
        super().load_state(state)
        self.box = state.get("box", "")


class InBoxes:
    """What every spawner has to say for the mixin."""

    def reclaim_location(self):
        return Location(name=self.box)

    def reclaim_take(self, location):
        self.box = location.name

    def reclaim_alive(self):
        return bool(self.box)

    def reclaim_frozen(self):
        return None

    async def reclaim_find(self, incarnation):
        return None

    async def reclaim_where(self, port):
        return ("127.0.0.1", port)

    async def reclaim_variable(self, name):
        return ""

    async def reclaim_end(self):
        self.box = ""


class ReclaimBoxes(InBoxes, ReclaimMixin, Boxes):
    """Complete."""


def made(kind, **more):
    spawner = kind(
        hub=SimpleNamespace(base_url="/hub/", api_url="http://hub", public_host=""),
        user=SimpleNamespace(
            name="ann",
            id=1,
            url="/user/ann/",
            escaped_name="ann",
            settings={},
            spawners={},
        ),
        oauth_client_id="unused",
        **more,
    )
    spawner.orm_spawner = None
    return spawner


def without_logins():
    return SimpleNamespace(
        account=lambda: "1",
        save_state=lambda: None,
        token_id=lambda _: 0,
        hash_of=lambda _: "",
        delete=lambda _: None,
    )


def test_spawner_whose_will_resume_cannot_be_set_loads_a_suspended_session():
    spawner = made(ReclaimBoxes)
    assert not spawner.will_resume
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    assert spawner.will_resume
    assert spawner.reclaim_pointer == SUSPENDED
    spawner.load_state({})
    assert not spawner.will_resume


def test_return_that_leads_to_the_login_first_is_not_refused():
    """The Hub ends such a request with a redirect (``refresh_pre_spawn``)."""
    spawner = made(ReclaimBoxes)
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    redirected = web.Finish()
    assert spawner.reclaim_refusal(redirected) is redirected
    refused = spawner.reclaim_refusal(web.HTTPError(403, "no %s", "GPUs"))
    assert refused.reason == "start_denied"
    assert "no GPUs" in refused.jupyterhub_message
    secret = ValueError("postgres://hub:secret@db")
    assert "secret" not in spawner.reclaim_refusal(secret).jupyterhub_message
    spawner.load_state({})  # nothing is suspended: the Hub's own errors
    assert spawner.reclaim_refusal(secret) is secret


@pytest.mark.parametrize("sent", [{"x": "y" * (1 << 16)}, {"x": object()}])
def test_choice_that_is_much_or_no_json_is_not_kept_with_each_step(sent):
    spawner = made(ReclaimBoxes)
    spawner.user_options = sent
    assert spawner._lifecycle._choice() is None
    spawner.user_options = {"profile": "gpu"}
    assert spawner._lifecycle._choice().options == {"profile": "gpu"}


@pytest.mark.parametrize(("session", "kept"), [("s", True), ("another", False)])
async def test_choice_is_that_of_the_session_whichever_of_its_states_comes_back(
    session, kept
):
    """A person may go back to an older one."""
    choice = Choice(options={"profile": "gpu"})
    spawner = made(ReclaimBoxes)
    saved = msgspec.structs.replace(SUSPENDED, session="s", choice=choice)
    spawner.load_state({KEY: saved.to_state()})
    spawner.api_token = ""

    async def plan_start(placement):
        return StartPlan(action="restore", checkpoint="c0", session=session)

    async def cancelled(placement):
        """Its login is not known: it goes no further."""

    service = SimpleNamespace(plan_start=plan_start, cancelled=cancelled)
    nowhere = KnownServers(None)
    life = SessionLifecycle(spawner, lambda: service, ManualClock(), nowhere)
    life.logins = without_logins()
    life.load(saved)
    with pytest.raises(RestoreFailed):
        await life.start(spawner.start)
    assert life.pointer.checkpoint == "c0"
    assert (life.pointer.choice == choice) is kept


def test_sessions_programs_open_no_io_uring_by_themselves_unless_configured():
    assert made(ReclaimBoxes).get_env()["UV_USE_IO_URING"] == "0"
    assert "-opencl" in made(ReclaimBoxes).get_env()["HWLOC_COMPONENTS"]
    spawner = made(ReclaimBoxes, environment={"UV_USE_IO_URING": "1"})
    assert spawner.get_env()["UV_USE_IO_URING"] == "1"


def test_state_of_the_other_spawner_is_kept_beside_the_pointer():
    spawner = made(ReclaimBoxes)
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    state = spawner.get_state()
    assert state == {"box": "box-1", KEY: SUSPENDED.to_state()}
    again = made(ReclaimBoxes)
    again.load_state(state)
    assert again.get_state() == state


def test_with_subdomains_its_links_lead_to_the_host_of_the_service():
    spawner = made(ReclaimBoxes)
    page = "/services/gpu-reclaim/sessions/ann/-"
    assert spawner.reclaim_fresh_url == page
    spawner.user.settings = {
        "subdomain_host": "https://hub.example.org:8443",
        "subdomain_hook": subdomain_hook_idna,
    }
    host = "https://gpu-reclaim--service.hub.example.org:8443"
    assert spawner.reclaim_fresh_url == host + page


async def test_suspended_session_of_another_spawner_counts_as_stopped():
    spawner = made(ReclaimBoxes)
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    assert await spawner.poll() == 0


async def test_without_a_service_it_starts_and_stops_as_ever():
    spawner = made(ReclaimBoxes)
    spawner.port = 4711
    spawner.api_token = ""
    spawner._lifecycle.logins = without_logins()
    assert await spawner.start() == ("127.0.0.1", 4711)
    assert spawner.reclaim_pointer.location == Location(name="box-2")
    assert await spawner.poll() is None
    spawner.reclaim_service = ""
    spawner.reclaim_frozen = lambda: False
    await spawner.stop()
    assert await spawner.poll() == 0


async def test_spawner_inside_of_another_one_starts_nothing_that_could_be_suspended():
    """The Hub would delete its login at the suspend, and forget where it is saved."""
    spawner = made(ReclaimBoxes)
    spawner.user.spawners[""] = made(Boxes)
    spawner.reclaim_service = "unix:/nowhere"
    with pytest.raises(StartRefused, match="cannot be inside of another spawner"):
        await spawner.start()
    assert not spawner.box


def test_spawner_that_leaves_something_out_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="`reclaim_end`, `reclaim_find`"):

        class Half(ReclaimMixin, Boxes):
            reclaim_location = InBoxes.reclaim_location
            reclaim_take = InBoxes.reclaim_take
            reclaim_alive = InBoxes.reclaim_alive
            reclaim_frozen = InBoxes.reclaim_frozen
            reclaim_where = InBoxes.reclaim_where
            reclaim_variable = InBoxes.reclaim_variable


def test_how_to_names_all_that_a_spawner_says():
    named = set(re.findall(r"`(reclaim_\w+)", HOW_TO.read_text()))
    asked = {
        name
        for name in vars(SessionPlacement)
        if name.startswith("reclaim_") and callable(getattr(SessionPlacement, name))
    }
    assert asked <= named


@pytest.mark.filterwarnings("ignore:Failed to run:RuntimeWarning")
def test_systemdspawner_with_the_mixin_keeps_its_unit_and_the_pointer():
    upstream = pytest.importorskip("systemdspawner")

    class InUnits(InBoxes, ReclaimMixin, upstream.SystemdSpawner):
        def reclaim_location(self):
            return Location(name=self.unit_name)

        def reclaim_take(self, location):
            self.unit_name = location.name or self.unit_name

    spawner = made(InUnits)
    suspended = msgspec.structs.replace(SUSPENDED, location=Location())
    spawner.load_state({"unit_name": "of-ann", KEY: suspended.to_state()})
    assert spawner.will_resume
    state = spawner.get_state()
    assert state["unit_name"] == "of-ann"
    assert Pointer.from_state(state[KEY]) == suspended


class Patient(ReclaimBoxes):
    """It works for some time before it calls our start, and after that."""

    def __init__(self, **more):
        super().__init__(**more)
        self.before, self.after = asyncio.Event(), asyncio.Event()

    async def start(self):
        await self.before.wait()
        where = await super().start()
        await self.after.wait()
        return where

    async def progress_so_far(self):
        """What a page is shown until nothing more comes for some time."""
        lines = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                async for line in self.progress():
                    lines += [line["message"]]
        return lines


async def test_own_progress_is_shown_before_and_after_our_part_of_a_start():
    spawner = made(Patient)
    spawner.port, spawner.api_token = 4711, ""
    spawner._lifecycle.logins = without_logins()
    assert await spawner.progress_so_far() == ["Spawning server..."]
    start = asyncio.create_task(spawner.start())
    spawner.before.set()
    while not spawner.box:
        await asyncio.sleep(0)
    assert await spawner.progress_so_far() == ["Spawning server..."]
    spawner.after.set()
    await start


async def test_page_before_the_next_start_is_shown_nothing_of_the_last_one():
    spawner = made(Patient)
    spawner.port, spawner.api_token = 4711, ""
    spawner._lifecycle.logins = without_logins()
    spawner.before.set()
    spawner.after.set()
    spawner._lifecycle.reporter.report("A step of the first start")
    await spawner.start()
    spawner.clear_state()  # as at a stop
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    assert spawner._lifecycle.story["status"] == "A step of the first start"
    assert await spawner.progress_so_far() == []


async def test_page_before_a_resume_waits_for_its_steps():
    spawner = made(Patient)
    spawner.load_state({"box": "box-1", KEY: SUSPENDED.to_state()})
    assert await spawner.progress_so_far() == []

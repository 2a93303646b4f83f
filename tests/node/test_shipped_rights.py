"""Sessions of every kind of Hub return under an agent with the rights that we ship.

The agent runs as its unit or its DaemonSet has it (``tests/support/process_rights.py``
reads them), and each session as its Hub starts it. Where both inherit the same rights,
as everywhere else in the tests, nothing that a return lowers or cannot give is seen.
"""

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds import rights
from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.support.agent import criu_folder, goes_on, short_folder, wait_for
from tests.support.agent import places as make_places
from tests.support.process_rights import (
    DOCKERS_DEFAULT,
    TLJH_UNIT,
    UNIT,
    AgentOf,
    ProcessRights,
    bits,
    of_chart,
    of_unit,
)

UID, GID, ADMINS = 54321, 54322, 54323
#: What is compared of each thread.
NAMES = sorted({*rights.FIELDS, "Gid", "Groups"})
#: Counts; beside it a thread and a program.
PROGRAM = """
import os, sys, threading, time
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
if os.fork() == 0:
    time.sleep(1e6)
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""
AGENTS = {
    "unit": lambda: of_unit(UNIT.read_text()),
    "manifest": of_chart,
    # What an administrator narrows in a drop-in: no more than we need.
    "narrow": lambda: ProcessRights(bits(*capabilities.NEEDED, "SYS_RESOURCE")),
}


@dataclass(frozen=True)
class Session:
    given: ProcessRights
    uid: int = UID
    groups: tuple[int, ...] = (GID,)
    no_new_privileges: bool = False

    def options(self) -> dict[str, SystemUser]:
        gid = GID if self.uid else 0
        user = SystemUser(self.uid, gid, self.groups, self.no_new_privileges)
        return {"system_user": user}


HUB_OF_TLJH = of_unit(TLJH_UNIT)
TLJH_USER = Session(HUB_OF_TLJH, no_new_privileges=True)
TLJH_ADMIN = Session(HUB_OF_TLJH, groups=(GID, ADMINS))
#: SystemdSpawner, SudoSpawner, LocalProcessSpawner: all that a machine's root has.
LOCAL = Session(ProcessRights())
ROOT = Session(ProcessRights(), uid=0, groups=(0,))
DOCKER_ROOT = Session(ProcessRights(DOCKERS_DEFAULT), uid=0, groups=(0,))
#: Docker before 20.10.14 and containerd before 1.5.11 left them inheritable.
OLD_DOCKER = Session(ProcessRights(DOCKERS_DEFAULT, DOCKERS_DEFAULT))
POD = Session(ProcessRights(DOCKERS_DEFAULT))
#: It has none; here its init needs two to become its user.
RESTRICTED_POD = Session(
    ProcessRights(bits("SETUID", "SETGID"), no_new_privileges=True)
)


@pytest.fixture(scope="module")
def agents():
    """One agent of each kind, started when it is first asked for."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the agent enters namespaces")
    made: dict[str, AgentOf] = {}
    with short_folder() as folder:
        folder.chmod(0o755)  # sessions of other users stand in it

        def get(name: str) -> AgentOf:
            if name not in made:
                (folder / name).mkdir()
                made[name] = AgentOf(folder / name, criu_folder(), AGENTS[name]())
                made[name].start()
            return made[name]

        yield get
        for one in made.values():
            one.kill()
            print(one.log.read_text())


@pytest.fixture
def begin(agents, request):
    """Start a session beside an agent; the agent, and what makes its places."""

    def start(name: str, session: Session):
        agent = agents(name)
        places = make_places(agent.folder)
        request.addfinalizer(lambda: next(places, None))
        make = next(places)
        place = make(
            "start",
            *(python(), "-I", "-S", "-c", PROGRAM),
            env={},
            options=session.options(),
            rights=session.given.words(),
        )
        wait_for(lambda: place.output.stat().st_size)
        assert wait_for(lambda: not place.alive or len(rights_of(place)) == 4)
        assert place.alive, place.output.read_text()
        return agent, make, place

    return start


def python() -> str:
    """Of the system: other users may not be let into the folder of ours."""
    return shutil.which("python3", path="/usr/bin:/bin") or sys.executable


def rights_of(place) -> list[dict[str, str]]:
    found = []
    for process in place.tree.processes:
        for task in (Path("/proc") / str(process.pid) / "task").iterdir():
            status = procfs.status(process.pid, int(task.name))
            found.append({name: status.get(name, "") for name in NAMES})
    return found


def comes_back(begin, kind, session, today=None):
    """Suspend it and bring it back; what its threads had, and have."""
    agent, make, place = begin(kind, session)
    had = rights_of(place)
    name = f"c{os.urandom(4).hex()}"
    agent.suspend(place, name)
    new = make(
        "hold",
        env={},
        options=(today or session).options(),
        rights=session.given.words(),
    )
    last = agent.restore(new, name)[-1]
    assert last.get("tree"), last
    assert goes_on(new)
    return had, rights_of(new)


long = pytest.mark.long


@pytest.mark.parametrize(
    ("agent", "session"),
    [
        pytest.param("unit", TLJH_USER, id="tljh"),
        pytest.param("unit", TLJH_ADMIN, id="tljh administrator", marks=long),
        pytest.param("unit", LOCAL, id="systemd and sudo", marks=long),
        pytest.param("unit", ROOT, id="root of the machine", marks=long),
        pytest.param("unit", DOCKER_ROOT, id="docker", marks=long),
        pytest.param("unit", OLD_DOCKER, id="old docker", marks=long),
        pytest.param("manifest", POD, id="pod"),
        pytest.param("manifest", DOCKER_ROOT, id="pod of root", marks=long),
        pytest.param("manifest", RESTRICTED_POD, id="restricted pod", marks=long),
    ],
)
def test_session_returns_with_all_its_rights(begin, agent, session):
    had, has = comes_back(begin, agent, session)
    assert has == had


def test_user_loses_what_a_narrow_agent_lacks_and_could_not_be_used(begin):
    """No right of the user's: the bounding set limits what is gained by ``sudo``."""
    had, has = comes_back(begin, "narrow", TLJH_USER)
    for before, after in zip(had, has, strict=True):
        lacks = int(before.pop("CapBnd"), 16) & ~int(after.pop("CapBnd"), 16)
        assert lacks == HUB_OF_TLJH.bounding & ~AGENTS["narrow"]().bounding
        assert after == before


def test_root_of_a_machine_is_refused_by_a_narrow_agent_and_the_agent_is_named(begin):
    agent, _, place = begin("narrow", ROOT)
    last = agent.capture(place, "refused")[-1]
    assert last["failure"]["code"] == "capability_missing"
    assert "agent lacks CAP_" in last["failure"]["message"]
    assert goes_on(place)


def test_administrator_who_is_none_any_more_returns_without_sudo(begin):
    today = replace(TLJH_ADMIN, groups=(GID,), no_new_privileges=True)
    had, has = comes_back(begin, "unit", TLJH_ADMIN, today)
    assert {one["Groups"] for one in had} == {f"{GID} {ADMINS}"}
    wanted = {"Groups": str(GID), "NoNewPrivs": "1"}
    assert has == [{**one, **wanted} for one in had]

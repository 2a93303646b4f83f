"""Who is believed to be a container's session, and what Docker's silence means."""

import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.errors import NotFound, Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.cgroups import parse_engine_container
from jupyterhub_gpu_reclaim.node.sessions.docker_placements import (
    DockerEngine,
    DockerPlacements,
)
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.node.test_pods import Proc
from tests.support.unix_server import Answers, UnixServer

ANNS, BOBS = "a" * 64, "b" * 64
ANN = SessionKey("ann", "gpu")
IMAGE = "sha256:" + "1" * 64


def group(container):
    return f"4:memory:/docker/{container}\n0::/docker/{container}\n"


class Docker(UnixServer):
    def __init__(self, path):
        self.containers = [self.container(ANNS, "inc-1", "ann")]
        self.asked = 0
        super().__init__(path, _Answer)

    @staticmethod
    def container(identity, incarnation, user, *, realm="", created=1):
        more = {"session": "its-id", "account": "7.x"}
        labels = command_line.labels(
            InitArguments(incarnation, user, "gpu", realm, **more)
        )
        facts = {"ImageID": IMAGE, "Created": created, "State": "running"}
        return {"Id": identity, "Labels": labels, **facts}


class _Answer(Answers, BaseHTTPRequestHandler):
    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        assert json.loads(query["filters"][0]) == {"label": ["gpu-reclaim.incarnation"]}
        self.server.asked += 1
        self.answer(200, json.dumps(self.server.containers).encode())


@pytest.fixture
def docker(tmp_path):
    server = Docker(tmp_path / "d.sock")
    yield server
    server.close()


@pytest.fixture
def proc(tmp_path, monkeypatch):
    folder = tmp_path / "proc"
    folder.mkdir()
    monkeypatch.setattr(procfs, "PROC", folder)
    return Proc(folder)


@pytest.fixture
def placements(docker, proc, tmp_path):
    engine = DockerEngine(str(tmp_path / "d.sock"))
    return DockerPlacements(engine, patience=0.0, owners=lambda pid, pod: {0})


def test_session_is_found_with_its_container_and_image(placements, proc):
    proc.add(group=group(ANNS))
    (session,) = placements.list()
    assert session == placements.find("inc-1")
    assert (session.key, session.container) == (ANN, ANNS)
    assert (session.hint.session, session.hint.account) == ("its-id", "7.x")
    assert session.hint == PodHint(
        pod=ANNS, key=ANN, image=IMAGE, session="its-id", account="7.x"
    )


def test_docker_is_asked_once_for_each_session(placements, proc, docker):
    proc.add(group=group(ANNS))
    for _ in range(3):
        placements.list()
        placements.find("inc-1")
    assert docker.asked == 1


@pytest.mark.parametrize(
    "claim",
    [
        {"group": group(BOBS)},
        {"group": group(BOBS), "start": 1},
        {"group": f"0::/docker/{BOBS}/{ANNS}\n"},
        {"group": f"4:memory:/docker/{ANNS}\n0::/docker/{BOBS}\n"},
        {"group": group(ANNS), "user": "bob"},
        {"group": group(ANNS), "pids": "7\t8\t1"},
        {"group": "0::/user.slice\n"},
    ],
    ids=["other", "older", "deeper", "torn", "user", "nested", "outside"],
)
def test_claim_of_another_container_or_user_is_not_believed(placements, proc, claim):
    proc.add(**claim)
    assert placements.list() == []
    with pytest.raises(NotFound):
        placements.find("inc-1")


def test_attacker_does_not_hide_the_session_that_he_claims_to_be(placements, proc):
    proc.add(7, group=group(BOBS), start=1)
    proc.add(8, group=group(ANNS), start=2)
    (session,) = placements.list()
    assert session.init_pid == placements.find("inc-1").init_pid == 8


def test_group_that_a_user_has_made_in_a_containers_name_is_not_believed(
    docker, proc, tmp_path
):
    engine, asked = DockerEngine(str(tmp_path / "d.sock")), []

    def owners(pid, container):
        asked.append((pid, container))
        return {0} if pid == 8 else {0, 1000}

    placements = DockerPlacements(engine, patience=0.0, owners=owners)
    users = f"/user.slice/user@1000.service/docker-{ANNS}.scope"
    proc.add(7, group=f"0::{users}\n", start=1)
    proc.add(8, group=group(ANNS), start=2)
    (session,) = placements.list()
    assert session.init_pid == placements.find("inc-1").init_pid == 8
    assert {(7, ANNS), (8, ANNS)} == set(asked)


def test_container_of_another_hub_is_none_of_ours(placements, proc, docker):
    docker.containers = [docker.container(ANNS, "inc-1", "ann", realm="teaching")]
    proc.add(group=group(ANNS))  # its user writes a command line as they like
    assert placements.list() == []
    with pytest.raises(NotFound):
        placements.find("inc-1")


@pytest.mark.parametrize("newest_first", [True, False])
def test_image_with_the_labels_of_a_session_takes_its_place_in_no_order(
    placements, proc, docker, newest_first
):
    docker.containers.append(docker.container(BOBS, "inc-1", "ann", created=2))
    if newest_first:
        docker.containers.reverse()
    proc.add(7, group=group(BOBS), start=1)
    proc.add(8, group=group(ANNS), start=2)
    (session,) = placements.list()
    assert session.init_pid == placements.find("inc-1").init_pid == 8


def test_claims_in_a_known_container_hide_nobody_while_docker_is_silent(
    placements, proc, docker, tmp_path
):
    proc.add(7, group=group(ANNS))
    assert placements.list()
    proc.add(8, group=group(ANNS), incarnation="made-up")
    assert len(placements.list()) == 1
    assert docker.asked == 1
    (tmp_path / "d.sock").unlink()
    assert len(placements.list()) == 1


def test_container_that_docker_does_not_know_as_a_session_is_none(
    placements, proc, docker
):
    docker.containers = []
    proc.add(group=group(ANNS))
    assert placements.list() == []


def test_silent_docker_is_an_error_until_it_has_told_of_the_session(
    placements, proc, tmp_path
):
    proc.add(group=group(ANNS))
    (tmp_path / "d.sock").rename(tmp_path / "gone")
    for look in (placements.list, lambda: placements.find("inc-1")):
        with pytest.raises(Unreachable) as caught:
            look()
        assert caught.value.reason is Reason.DOCKER_SILENT
    (tmp_path / "gone").rename(tmp_path / "d.sock")
    assert placements.list()
    (tmp_path / "d.sock").rename(tmp_path / "gone")
    assert placements.find("inc-1").hint.image == IMAGE


def test_record_of_a_session_stands_in_for_a_silent_docker(placements, proc, tmp_path):
    proc.add(group=group(ANNS))
    (tmp_path / "d.sock").unlink()
    placements.set_hint("inc-1", PodHint(pod=ANNS, key=ANN))
    assert placements.find("inc-1").init_pid == 7


def test_service_that_names_no_pod_is_let_be(placements, proc):
    proc.add(group=group(ANNS))
    placements.set_hint("inc-1", PodHint())
    assert placements.find("inc-1").hint.pod == ANNS


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{ANNS}",
        f"/system.slice/docker-{ANNS}.scope",
        f"/labs.slice/labs-gpu.slice/docker-{ANNS}.scope",
        f"/docker/{ANNS}/mine/{BOBS}",
    ],
)
def test_container_is_the_outermost_of_its_group(path):
    found = parse_engine_container(f"0::{path}\n")
    assert found is not None
    assert found.id == ANNS


@pytest.mark.parametrize("table", ["", "0::/\n", "0::/user.slice/docker-cafe.scope\n"])
def test_process_in_no_container_has_none(table):
    assert parse_engine_container(table) is None

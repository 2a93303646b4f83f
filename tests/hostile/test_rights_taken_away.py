"""What a user may no longer do does not come back with a session of before.

A demoted administrator of TLJH, or a member of a group with private data, suspends a
session, loses the group, and resumes: CRIU would give each thread its old groups back.
"""

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds import attributes
from jupyterhub_gpu_reclaim.checkpoint.kinds.attributes import (
    Attributes,
    ThreadAttributes,
)
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.checkpoint.tree.taken_away import RightsToday, adapt
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.session import Session
from jupyterhub_gpu_reclaim.node.workflows import lost_rights
from jupyterhub_gpu_reclaim.session_init.command_line import (
    InitArguments,
    SystemUser,
    written,
)
from tests.checkpoint import conftest as engine_tests
from tests.node.conftest import agent, folder, places, shared_agent
from tests.node.test_shipped_rights import PROGRAM
from tests.support.agent import goes_on, wait_for
from tests.support.attacker import (
    GID,
    UID,
    criu_for_any_user,
    make_folder,
    save_session,
)

__all__ = ["agent", "folder", "places", "shared_agent"]
#: No groups of this machine, and the session's own.
STAFF, DATA, OWN = 40001, 40002, 0


def given(*groups, uid=0):
    return {"system_user": SystemUser(uid, OWN, groups)}


def rights(place):
    found = []
    for process in place.tree.processes:
        for task in (Path("/proc") / str(process.pid) / "task").iterdir():
            lines = (task / "status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            found.append({int(group) for group in fields["Groups"].split()})
    return found


@pytest.fixture
def suspended(agent, places):
    """A session that was started as a member of both groups; who has it resumed."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM]
    place = places("start", *command, env={}, options=given(OWN, STAFF, DATA))
    wait_for(lambda: place.output.stat().st_size)
    wait_for(lambda: len(rights(place)) == 4)
    assert agent.capture(place, "c1")[-1].get("checkpoint"), agent.log.read_text()
    agent.release(place, "c1")

    def resume(**options):
        new = places("hold", env={}, options=options)
        return new, agent.restore(new, "c1")[-1]

    return resume


def test_groups_that_were_taken_away_do_not_come_back(suspended):
    """Nor anything for a user id that is another person's by now."""
    _, last = suspended(**given(OWN, STAFF, DATA, uid=1234))
    assert last["failure"]["code"] == "user_mismatch"
    place, last = suspended(**given(OWN, STAFF))
    assert last.get("tree"), last
    assert goes_on(place)
    assert rights(place) == [{OWN, STAFF}] * 4


@pytest.fixture
def member(criu):
    """A session with a file open that only members of a group may read."""
    folder = make_folder()
    data = folder / "data"
    data.write_text("of patients")
    os.chown(data, 0, DATA)
    data.chmod(0o640)
    made = engine_tests.Places(folder)
    told = "private = open('../data'); 1"
    shim = criu_for_any_user(criu, folder)
    yield save_session(shim, folder, made, told, groups=(DATA, STAFF))
    made.clear()
    shutil.rmtree(folder, ignore_errors=True)


def of(**threads):
    return SavedImages(None, tree(**threads))


def without(image, *lost):
    today = RightsToday(UID, GID, lambda group: group not in lost)
    saved = SavedImages(None, image)
    adapted = adapt(saved, today)
    return engine_tests.Image(saved.written()), adapted


def test_file_of_a_lost_group_is_not_opened_for_its_former_member(member):
    changed, adapted = without(member.image, DATA)
    assert (adapted.lost, adapted.others) == ({DATA}, False)
    with pytest.raises(RestoreFailed) as caught:
        member.restore(image=changed)
    assert caught.value.reason is Reason.FILE_DENIED
    assert "/data" in caught.value.message
    changed, _ = without(member.image, STAFF)
    world = member.restore(image=changed)
    assert world("sorted(os.getgroups())") == [DATA]
    assert world("private.read()") == "of patients"


def core(**rights) -> bytes:
    entry = images.parse("core_entry", b"")
    creds = entry.thread_core.creds
    for field in ("uid", "euid", "suid", "fsuid"):
        setattr(creds, field, UID)
    for field in ("gid", "egid", "sgid", "fsgid"):
        setattr(creds, field, GID)
    for field, value in rights.items():
        if isinstance(value, list):
            getattr(creds, field).extend(value)
        else:
            setattr(creds, field, value)
    return images.join(images.CORE_MAGIC, [images.serialize(entry)])


def tree(**cores) -> dict[str, bytes]:
    found, entries = {}, []
    for number, image in enumerate(cores.values(), 300):
        found[f"core-{number}.img"] = image
        entry = images.parse("pstree_entry", b"")
        entry.pid, entry.ppid, entry.sid = number, 0, number
        entry.threads.append(number)
        entries.append(images.serialize(entry))
    return {"pstree.img": images.join(images.PSTREE_MAGIC, entries), **found}


ROOT = dict.fromkeys(("uid", "euid", "suid", "fsuid"), 0)
#: Of a unit with User=root and PrivateDevices=yes.
LEFT = {"cap_inh": [0x200100, 0]}


@pytest.mark.parametrize(
    ("other", "others"),
    [
        ({}, False),
        ({"egid": STAFF, "sgid": STAFF}, False),  # ssh-agent: anybody may run it
        (ROOT, True),  # sudo -i
        ({"suid": 0}, True),
        ({"cap_prm": [0, 1]}, True),
    ],
)
def test_programs_of_root_are_told_where_a_group_was_lost(other, others):
    made = tree(server=core(groups=[GID, DATA]), other=core(groups=[0], **other))
    _, adapted = without(made, DATA)
    assert adapted.lost == {DATA}
    assert adapted.others is others


def test_groups_of_sudo_itself_are_none_that_its_user_has_lost():
    """An administrator with a ``sudo`` that runs did not come back, ever."""
    sudo = core(**{**ROOT, "uid": UID, "gid": 0, "egid": 0, "groups": [0]})
    today = RightsToday(UID, GID, lambda group: group == GID)
    adapted = adapt(of(server=core(groups=[GID]), sudo=sudo), today)
    assert adapted == (frozenset(), False, True)


def test_program_that_made_a_lost_group_its_own_has_its_users_first_group():
    own = dict.fromkeys(("gid", "egid", "sgid", "fsgid"), DATA)
    changed, _ = without(tree(newgrp=core(groups=[GID], **own)), DATA)
    (image,) = images.split(changed["core-300.img"], images.CORE_MAGIC)
    creds = images.parse("core_entry", image).thread_core.creds
    assert {creds.gid, creds.egid, creds.sgid, creds.fsgid} == {GID}


@pytest.mark.parametrize(
    ("user", "others", "told"),
    [
        (SystemUser(UID, GID, (STAFF,)), ROOT, "the group 40002"),
        (SystemUser(UID, GID, (STAFF, DATA), no_new_privileges=True), ROOT, "sudo"),
        (SystemUser(UID, GID, (STAFF, DATA)), ROOT, ""),
        (SystemUser(UID, GID, (STAFF,), no_new_privileges=True), {}, ""),
        # What systemd leaves inheritable is no right of anybody's.
        (SystemUser(UID, GID, (STAFF,)), LEFT, ""),
    ],
)
def test_root_of_before_comes_back_only_with_the_rights_that_made_it(
    monkeypatch, user, others, told
):
    made = tree(server=core(groups=[GID, STAFF, DATA]), other=core(**others))
    word = written(InitArguments("i", "ada", holding=True, system_user=user))
    words = [b"session_init", word.encode()]
    monkeypatch.setattr(lost_rights.procfs, "words", lambda *_: words)
    saved = {f"criu/{name}": image for name, image in made.items()}
    there = SimpleNamespace(
        world=SimpleNamespace(uid=UID, given_groups=[]), checkpoint=Saved(saved)
    )
    session = Session("i", SessionKey("ada"), 1, 1, holding=True)
    found, changed = lost_rights.without_lost(session, there)
    assert [one.code for one in found] == (["rights_changed"] if told else [])
    assert not told or f"has lost {told} meanwhile" in found[0].message
    assert bool(changed) == (not told and user != SystemUser(UID, GID, (STAFF, DATA)))


class Saved(dict):
    def size(self, name):
        return len(self[name])

    def stream(self, name, skip=()):
        return [self[name]]


def test_sudo_that_is_off_by_now_is_off_after_the_return():
    """And it is what the return is judged by."""
    today = RightsToday(UID, GID, lambda _: True, no_new_privileges=True)
    had = {300: Attributes(threads={300: ThreadAttributes(given_back={"CapBnd": "1"})})}
    made = tree(server=core()) | {attributes.IMAGE: codec.encode(had)}
    saved = SavedImages(None, made)
    adapted = adapt(saved, today)
    assert adapted.sudo
    assert saved.core(300).thread_core.creds.no_new_privs == 1
    given = attributes.load(saved)[300].threads[300].given_back
    assert given == {"CapBnd": "1", "NoNewPrivs": "1"}


def test_user_who_never_had_sudo_has_not_lost_it():
    """Whatever a program of the session holds, it has it from elsewhere."""
    today = RightsToday(UID, GID, lambda _: True, no_new_privileges=True)
    adapted = adapt(of(server=core(no_new_privs=1, **LEFT)), today)
    assert adapted == (frozenset(), False, False)
    held = core(no_new_privs=1, cap_prm=[1, 0])
    assert adapt(of(server=held), today) == (frozenset(), False, True)


#: Writes a file in a folder of a group of its user's.
WRITER = """
import sys, time
file = open(sys.argv[1], "w")
file.write("then"); file.flush()
print("x", flush=True)
time.sleep(1e6)
"""


def test_former_member_of_a_group_puts_no_files_back_into_its_folder(agent, places):
    """The agent could; its user may not any more."""
    shared = agent.folder / "shared"
    shared.mkdir()
    os.chown(shared, 4711, DATA)
    shared.chmod(0o2770)
    path = shared / "file"
    command = [sys.executable, "-I", "-S", "-c", WRITER, str(path)]
    if os.geteuid() == 0:  # root's files are root's, with or without the group
        path.touch()
        os.chown(path, 4711, DATA)
        path.chmod(0o660)
    place = places("start", *command, env={}, options=given(OWN, STAFF, DATA))
    wait_for(lambda: place.output.stat().st_size)
    assert agent.save(place, "kept")[-1].get("checkpoint"), agent.log.read_text()
    place.kill()
    path.write_text("newer, of the group")

    def back(*groups):
        there = places("hold", options=given(*groups))
        answer = agent.restore(there, "kept", put_files_back=True)[-1]
        there.kill()
        return answer

    failure = back(OWN, STAFF)["failure"]
    assert failure["code"] == "restore_failed", failure
    assert "Permission denied" in failure["message"]
    assert [each.name for each in shared.iterdir()] == ["file"]
    assert path.read_text() == "newer, of the group"
    answer = back(OWN, STAFF, DATA)
    assert answer.get("tree"), answer
    assert path.read_text() == "then"

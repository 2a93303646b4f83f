"""The command line against the service's real routes: what it asks, prints, returns."""

import asyncio
import re
import time

import msgspec
import pytest

from jupyterhub_gpu_reclaim.cli import sessions
from jupyterhub_gpu_reclaim.common.drain import Drain
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    Nap,
    Phase,
    SessionKey,
    Step,
    Suspension,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth, NodeStatus
from tests.service.conftest import checkpoint
from tests.support.commands import unused

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")
BROKEN = Failure(code="capture_failed", message="It did not work.", hint="Look.")


def goes_on(control, name: str, *after: dict) -> None:
    """Let a call of the double be followed by changes, a moment later each."""
    call = getattr(control, name)
    soon = []

    async def called(key, by, **more):
        async def change():
            for changes in after:
                await asyncio.sleep(0.05)
                control.put(key.user, key.server, **changes)

        answer = await call(key, by, **more)
        soon.append(asyncio.create_task(change()))
        return answer

    setattr(control, name, called)


async def test_delete_asks_and_says_what_is_still_there(command, control):
    control.put("ada")
    code, _, err = await command("delete", "ada")
    assert (code, "say --yes if it should" in err) == (2, True)
    assert control.calls == []
    code, out, err = await command("delete", "ada", "--checkpoint=c7", "--yes")
    assert (code, "ada/     done" in out) == (0, True)
    assert err == (
        "ada/: c1 is still there. The session came back from it; it is kept in case it"
        " ends.\n"
    )
    assert control.calls == [("discard", SessionKey("ada"), "root", "c7")]
    _, told = await command.json("delete", "ada", "--everything", "--yes")
    assert told[0]["kept"] == []


# --- nodes ---------------------------------------------------------------------------
async def test_nodes_are_listed_with_their_faults_and_the_cure_of_each(
    command, control
):
    up = NodeStatus(host="vm", version="1.0")
    control.nodes_known = [NodeHealth(node="n1", status=up)]
    assert await command("nodes") == (0, "NODE  STATE  AGENT\nn1    ready  1.0  \n", "")
    drain = Drain(node="", by="root", since=0.0)
    control.nodes_known.append(NodeHealth(node="", status=up, drain=drain))
    code, out, err = await command("nodes")
    assert code == 1
    assert re.search(r"(?m)^this machine +1 fault +1.0", out)
    assert err == (
        "Error: this machine: This machine has been closed for maintenance since"
        " 1970-01-01 00:00 UTC, so no session starts until it is opened again."
        " (node_closed)\n  Suspended sessions are kept. For the administrator:"
        " 'jupyterhub-gpu-reclaim undrain' opens it.\n"
    )
    code, out, _ = await command("nodes", "--json")
    assert (code, '"since": 0.0' in out) == (1, True)


# --- sessions and why ----------------------------------------------------------------
async def test_sessions_are_listed_with_state_and_reason(command, control):
    verdict = Decision(reclaim=False, code="kernel_busy", message="Kernel a is busy.")
    usage = unused(7200, gpu_percent=3.2, gpu_memory=4_000_000_000)
    control.put("ada", verdict=verdict, usage=usage)
    told = Suspension(why="Suspended by root.")
    of_before = {"verdict": verdict, "facts": {"suspension": told}}
    control.put("bob", "train", phase=Phase.SUSPENDED, **of_before)
    code, out, err = await command("sessions")
    assert (code, err) == (0, "")
    ada, bob = (line.rstrip() for line in out.splitlines() if "/" in line)
    assert re.search(r"^ada/ +running .* 2 h +3 % +4.0 GB +Kernel a is busy\.$", ada)
    assert "bob/train" in bob
    assert "suspended" in bob
    assert bob.endswith("Suspended by root.")
    assert out.splitlines()[-1] == "2 sessions, 1 running, 1 suspended"
    passed = msgspec.structs.replace(BROKEN, retryable=True, at=1_700_000_000.0)
    control.put("ada", failure=passed)
    _, out, _ = await command("sessions")
    assert "failed at 2023-11-14 22:13 UTC: It did not work." in out


async def test_sessions_can_be_chosen_by_what_they_are(command, control):
    control.put("ada", usage=unused(30))
    control.put("bob", usage=unused(9000))
    control.put("bob", "saved", phase=Phase.SUSPENDED)
    control.put("eve", facts={"node": "gpu-3"})
    for line, names in {
        ("--idle-for=1h",): ["bob"],
        ("--state=suspended",): ["bob"],
        ("--user=ada", "--user=eve"): ["ada", "eve"],
        ("--node=gpu-3",): ["eve"],
        ("--node=gpu-3", "--node=gpu-4", "--state=running"): ["eve"],
        ("ada", "bob/saved"): ["ada", "bob"],
    }.items():
        _, found = await command.json("sessions", *line)
        assert [view["key"]["user"] for view in found] == names, line


async def test_own_sessions_are_all_that_a_user_sees(command, control, tmp_path):
    control.put("ada")
    control.put("bob")
    file = tmp_path / "token"
    file.write_text("token-ada\n")
    file.chmod(0o644)
    code, out, err = await command("sessions", f"--token-file={file}")
    assert code == 0
    assert "bob" not in out
    assert "chmod 600" in err


async def test_why_gives_every_reason_with_its_code(command, control):
    control.put("ada", "lab")
    code, out, _ = await command("why", "ada/lab")
    assert code == 0
    assert "Kernel a is busy." in out
    assert "kernel_busy" in out
    control.why = lambda key: []
    control.put("ada", "lab", phase=Phase.STOPPED)
    code, out, _ = await command("why", "ada/lab")
    assert code == 0
    assert "It does not run now, so there is nothing to decide." in out


async def test_names_of_people_do_not_reach_the_terminal_as_commands(command, control):
    control.put("\x1b[2Jeve", verdict=Decision(reclaim=False, code="x", message="\x07"))
    _, out, _ = await command("sessions")
    assert "\x1b" not in out
    assert "\x07" not in out


# --- suspend, resume, keep -----------------------------------------------------------
async def test_suspend_waits_until_it_is_saved(command, control):
    control.put("ada")
    step = Step(step="dump", title="Saving", state="going", bytes=1, total_bytes=2)
    goes_on(
        control,
        "suspend",
        {"steps": [step]},
        {"phase": Phase.RELEASING},
        {"phase": Phase.SUSPENDED, "last_suspend": checkpoint(ADA)},
    )
    code, out, err = await command("suspend", "ada")
    assert (code, err) == (0, "")
    assert re.search(r"ada/ +done +0\.\d s +400 MB", out)
    assert control.calls == [("suspend", ADA, "root")]


async def test_suspend_that_fails_says_why_with_its_code(command, control):
    control.put("ada")
    goes_on(control, "suspend", {"phase": Phase.RUNNING, "failure": BROKEN})
    code, out, err = await command("suspend", "ada")
    assert code == sessions.FAILED
    assert "failed" in out
    assert err == "Error: ada/: It did not work. (capture_failed)\n  Look.\n"


async def test_suspend_of_what_is_suspended_is_a_success(command, control):
    last = checkpoint(ADA)
    control.put("ada", phase=Phase.SUSPENDED, last_suspend=last)
    code, out, err = await command("suspend", "ada")
    assert (code, err) == (0, "")
    assert re.search(r"ada/ +done ", out)


async def test_what_is_refused_for_one_is_done_for_the_others(command, control):
    control.put("ada", phase=Phase.RESUMING)
    control.put("bob", "train")
    goes_on(control, "suspend", {"phase": Phase.SUSPENDED})
    code, results = await command.json("suspend", "ada", "bob/train")
    assert code == sessions.FAILED
    assert [result["how"] for result in results] == ["refused", "done"]
    assert results[0]["failure"]["code"] == "wrong_phase"


async def test_resume_waits_until_it_runs(command, control):
    control.put("bob", "train", phase=Phase.SUSPENDED)
    goes_on(control, "resume", {"phase": Phase.RUNNING})
    code, results = await command.json("resume", "bob/train")
    assert (code, results[0]["how"]) == (0, "done")


async def test_no_wait_only_asks(command, control):
    control.put("ada")
    code, results = await command.json("suspend", "ada", "--no-wait")
    assert (code, results[0]["how"]) == (0, "asked")
    assert control.session(ADA).phase is Phase.SUSPENDING


async def test_time_limit_ends_the_waiting_and_not_the_work(command, control):
    control.put("ada")
    code, _, err = await command("suspend", "ada", "--time-limit=0.3")
    assert code == sessions.LATE
    assert "still_waiting" in err
    assert control.session(ADA).phase is Phase.SUSPENDING


async def test_stream_that_breaks_is_taken_up_again(command, control, monkeypatch):
    monkeypatch.setattr("jupyterhub_gpu_reclaim.cli.sessions.progress.PAUSE", 0.01)
    control.put("ada")
    changes = control.changes
    control.changes = broken = BrokenOnce(changes)
    goes_on(control, "suspend", {}, {}, {"phase": Phase.SUSPENDED})
    code, _ = await command.json("suspend", "ada")
    assert code == 0
    assert broken.times >= 2


class BrokenOnce:
    """The stream of changes, which ends at once the first time."""

    def __init__(self, changes) -> None:
        self.changes, self.times = changes, 0

    async def __call__(self):
        self.times += 1
        if self.times > 1:
            async for view in self.changes():
                yield view


async def test_idle_for_leaves_those_that_work_are_kept_or_unknown(command, control):
    busy = Decision(reclaim=False, code="gpu_busy", message="Busy.")
    control.put("a", usage=unused(3600))
    control.put("b", usage=unused(3600), verdict=busy)
    control.put("c", usage=unused(3600), kept_until=time.time() + 60)
    control.put("d", usage=unused(3600), facts={"opted_out_by": "root"})
    control.put("e", usage=unused(60))
    control.put("f", usage=unused(3600, complete=False))
    control.put("g")
    control.put("h", usage=unused(3600), phase=Phase.SUSPENDED)
    for name, code in (("i", "data_moves"), ("j", "page_used"), ("k", "prompt_open")):
        verdict = Decision(reclaim=False, code=code, message="In use.")
        control.put(name, usage=unused(3600), verdict=verdict)
    code, _ = await command.json("suspend", "--idle-for=10m", "--yes", "--no-wait")
    assert code == 0
    assert command.names("suspend") == [SessionKey("a")]


async def test_many_are_not_taken_without_a_yes(command, control):
    control.put("ada", usage=unused(3600))
    code, _, err = await command("suspend", "--idle-for=10m")
    assert code == sessions.WRONG
    assert "--yes" in err
    assert command.names("suspend") == []


async def test_all_that_run_can_be_saved_in_one_command(command, control):
    control.put("a")
    control.put("b", phase=Phase.NAPPING)
    control.put("c", phase=Phase.SUSPENDED)
    words = ("save", "--all", "--yes", "--no-wait", "--name", "before 5.5")
    code, found = await command.json(*words)
    assert (code, [each["how"] for each in found]) == (0, ["asked", "asked"])
    assert command.names("save") == [SessionKey("a"), SessionKey("b")]


async def test_nothing_is_suspended_when_no_session_is_chosen(command, control):
    control.put("ada")
    code, _, err = await command("suspend")
    assert code == sessions.WRONG
    assert "Which sessions?" in err
    code, out, _ = await command("suspend", "--user=nobody", "--yes")
    assert (code, out) == (0, "No session fits.\n")
    assert control.calls == []


@pytest.mark.parametrize(
    ("option", "seconds"), [((), 3600), (("--for", "4h"), 14400), (("--off",), 0)]
)
async def test_keep_tells_how_long(command, control, option, seconds):
    control.put("bob", "train")
    code, results = await command.json("keep", "bob/train", *option)
    assert (code, results[0]["how"]) == (0, "done")
    assert control.calls == [("keep", BOB, seconds, "root")]


async def test_keep_says_until_when(command, control):
    control.put("bob", "train", kept_until=1_800_000_000.0)
    code, out, _ = await command("keep", "bob/train")
    assert code == 0
    assert re.search(r"SESSION +RESULT +KEPT UNTIL *\nbob/train +done +2027-01-1", out)


async def test_cards_and_the_place_in_the_queue_are_shown(command, control):
    cards = [GpuSample(uuid=name, name="NVIDIA H200") for name in "ab"]
    control.put("ada", gpus=cards)
    control.put("bob", phase=Phase.RESUMING, facts={"place": 2})
    _, out, _ = await command("sessions")
    assert "2x H200" in out
    assert "Waiting for a free GPU: number 2 in the queue." in out


async def test_second_tree_is_ended_by_name_and_not_without_a_yes(command, control):
    control.put("bob", "train")
    code, _, err = await command("end-tree", "bob/train", "i2")
    assert code == sessions.WRONG
    assert "--yes" in err
    assert control.calls == []
    code, out, _ = await command("end-tree", "bob/train", "i2", "--yes")
    assert code == 0
    assert "bob/train" in out
    assert control.calls == [("end_tree", BOB, "i2", "root")]


# --- nap and wake
MOVED = Nap(begun=1.0, gpus=[GpuSample(uuid="a", memory=5)])


async def test_nap_is_done_when_its_gpu_memory_is_out(command, control):
    control.put("ada")
    napping = {"phase": Phase.NAPPING, "facts": {"nap": MOVED}}
    goes_on(control, "nap", napping)
    code, results = await command.json("nap", "ada")
    assert (code, results[0]["how"]) == (0, "done")
    assert control.calls == [("nap", ADA, "root")]

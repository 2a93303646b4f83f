"""A drain ordered by command, by button and over the API."""

import asyncio
import configparser
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.cli import sessions
from jupyterhub_gpu_reclaim.cli.sessions import drains
from jupyterhub_gpu_reclaim.common.drain import DrainReport
from jupyterhub_gpu_reclaim.common.models import Failure
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth, NodeStatus

BROKEN = Failure(code="capture_failed", message="It did not work.", hint="Look.")
EVIL = "<b>n</b>"


@pytest.fixture(autouse=True)
def nodes(control, monkeypatch):
    monkeypatch.setattr(drains, "PAUSE", 0.01)
    up = NodeStatus(host="vm", version="1.0", criu="4.2", cards=[])
    names = ("", "n1", EVIL)
    control.nodes_known = [NodeHealth(node=name, status=up) for name in names]


async def ordered(control) -> None:
    """Until the command has ordered the drain, and has looked at it once or twice."""
    while "n1" not in control.drains_known:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


async def soon(control, *steps) -> None:
    await ordered(control)
    for step in steps:
        control.drained("n1", *step[1:-1], state=step[0], **step[-1])
        await asyncio.sleep(0.05)


async def test_drain_waits_and_reports_what_became_of_each(command, control):
    control.put("ada")
    control.put("bob")
    after = asyncio.create_task(
        soon(
            control,
            ("saving", "ada", {}),
            ("saved", "ada", {}),
            ("refused", "bob", {"failure": BROKEN}),
        )
    )
    code, out, err = await command("drain", "--yes", "n1")
    await after
    assert code == 1
    assert out.splitlines()[1].split()[:2] == ["ada/", "saved"]
    assert "bob/" in out
    assert "It did not work." in out
    assert "1 session saved, 1 left." in out
    assert "until it is undrained" in err
    assert ("drain", "n1", None, False, "root") in control.calls


async def test_all_saved_is_success_and_deadline_is_sent(command, control):
    control.put("ada")
    after = asyncio.create_task(soon(control, ("saved", "ada", {})))
    more = ("--deadline", "10m", "--resume", "--json")
    code, out, _ = await command("drain", "--yes", "n1", *more)
    await after
    assert code == 0
    assert json.loads(out)[0]["state"] == "saved"
    assert ("drain", "n1", 600.0, True, "root") in control.calls


async def test_session_that_came_back_elsewhere_meanwhile_is_saved(command, control):
    control.put("ada")

    async def comes_back() -> None:
        await soon(control, ("saving", "ada", {}))
        report = control.drains_known["n1"]
        control.drains_known["n1"] = DrainReport(drain=report.drain)

    after = asyncio.create_task(comes_back())
    code, out, _ = await command("drain", "--yes", "n1")
    await after
    assert (code, "1 session saved, 0 left." in out) == (0, True)


async def test_deadline_ends_the_wait(command, control):
    control.put("ada")
    code, out, _ = await command("drain", "--yes", "n1", "--deadline", "0.2s")
    assert (code, "0 sessions saved, 1 left." in out) == (4, True)


async def test_drain_that_is_called_off_says_so(command, control):
    control.put("ada")

    async def called_off() -> None:
        await ordered(control)
        control.drains_known.clear()

    after = asyncio.create_task(called_off())
    code, _, err = await command("drain", "--yes", "n1")
    await after
    assert (code, "called off" in err) == (1, True)


async def test_hubs_own_machine_needs_no_name(command, control):
    code, out, _ = await command("drain", "--yes")
    assert (code, out) == (0, "No session runs on this machine.\n")
    code, out, _ = await command("undrain")
    assert (code, out) == (0, "This machine is no longer being drained.\n")
    code, _, err = await command("undrain")
    assert (code, "(not_drained)" in err) == (1, True)


async def test_unknown_node_and_users_are_refused(command, control, monkeypatch):
    code, _, err = await command("drain", "--yes", "n7")
    assert (code, "(unknown_node)" in err) == (1, True)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-ada")
    code, _, err = await command("drain", "--yes", "n1")
    assert (code, "(forbidden)" in err) == (1, True)
    assert control.calls == []


@pytest.mark.parametrize("body", ["", "[]", '{"seconds": "soon"}'])
async def test_bad_order_is_refused(service, body):
    answer = await service.call("api/nodes/n1/drain", "token-root", "POST", body=body)
    assert answer.code == 400
    assert service.control.calls == []


UNIT = Path(__file__).parents[2] / "etc/systemd/jupyterhub-gpu-reclaim-drain.service"


def test_unit_undrains_as_soon_as_the_hub_is_there_and_its_start_never_times_out(
    tmp_path,
):
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    words = shlex.split(unit["Service"]["ExecStart"].removeprefix("-"))
    words = [word.replace("$$", "$").replace("sleep 2", "sleep 0") for word in words]
    assert words[0] == "/usr/bin/timeout"
    assert int(words[1]) < int(unit["Service"]["TimeoutStartSec"]) - 10
    command = tmp_path / "jupyterhub-gpu-reclaim"
    command.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/tries\n"
        f"[ $(wc -l < {tmp_path}/tries) -gt 40 ] || exit 3\n"
    )
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(words, check=True, env={"PATH": path}, timeout=60)
    assert (tmp_path / "tries").read_text().count("x") == 41


async def test_drain_shows_what_runs_there_and_asks_and_names_its_undrain(
    command, control
):
    control.put("ada", facts={"node": "n1"})
    code, out, err = await command("drain", "n1")
    assert (code, "ada/" in out, "--yes" in err) == (sessions.WRONG, True, True)
    assert control.calls == []
    _, _, err = await command("drain", "--yes", "--no-wait", "n1")
    assert "jupyterhub-gpu-reclaim undrain n1" in err

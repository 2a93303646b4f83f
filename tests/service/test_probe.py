"""The administrator's probe is run, and what goes wrong."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from demo.processes import alive
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.probe import asking

KEY = SessionKey("--ada", "a b")


def command(code: str) -> str:
    return f'{sys.executable} -c "{code}"'


async def test_command_knows_the_session_and_none_of_our_secrets(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    code = (
        "import os; e = os.environ; print(e['GPU_RECLAIM_USER'],"
        " e['GPU_RECLAIM_SERVER'], e.get('JUPYTERHUB_API_TOKEN')); print('more')"
    )
    assert await asking(command(code))(KEY) == "--ada a b None"


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (command("import time; time.sleep(60)"), "no answer within 0.5 s"),
        (command("print('idle since 1'); exit(3)"), "status 3"),
        (command("while True: print('x' * 10**6)"), "no answer within 0.5 s"),
        ("/nowhere/probe", "No such file"),
    ],
)
async def test_what_does_not_answer_is_an_error_in_time(probe, why):
    begun = time.monotonic()
    with pytest.raises(Exception, match=why):
        await asking(probe, 0.5 if "0.5" in why else 10)(KEY)
    assert time.monotonic() - begun < 10


async def test_what_a_hanging_command_has_started_is_ended_with_it(tmp_path):
    told = tmp_path / "pid"
    script = tmp_path / "probe"
    script.write_text(f"#!/bin/sh\nsleep 3000 &\necho $! > {told}\nwait\n")
    script.chmod(0o700)
    with pytest.raises(TimeoutError):
        await asking(str(script), 1.0)(KEY)
    while alive(int(told.read_text())):
        await asyncio.sleep(0.02)


async def test_what_has_left_its_group_does_not_keep_our_end_of_the_pipe(tmp_path):
    pid = tmp_path / "pid"
    ask = asking(f"setsid sh -c 'echo $$ > {pid}; exec sleep 60'", limit=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TimeoutError):
        await ask(KEY)
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_no_probe_asks_nothing():
    assert asking("") is None

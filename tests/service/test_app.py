"""The program by itself: what hinders it is one sentence and exit status 1."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.service.settings.environment import (
    SPAWNER_SOCKET,
    SPAWNER_TOKEN,
)


@pytest.fixture(scope="module")
def programs():
    """Makes processes that have imported the program already, which takes a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jupyterhub_gpu_reclaim.service.app"])
    return context


def become_the_program(environment: dict[str, str], words: list[str], told: str):
    """In a process of its own: what the console script does, its words in a file."""
    with Path(told).open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    os.environ.update(environment)
    sys.argv = ["jupyterhub-gpu-reclaim-service", *words]
    from jupyterhub_gpu_reclaim.service.app import main

    sys.exit(main())


@pytest.fixture
def run(tmp_path, programs):
    """Runs the program until it gives up; its exit status and its last line."""

    def started(*arguments: str, **changes: str) -> tuple[int, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            "JUPYTERHUB_API_TOKEN": "t" * 32,
            "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/gpu-reclaim/",
            "JUPYTERHUB_SERVICE_NAME": "gpu-reclaim",
            SPAWNER_TOKEN: "s" * 32,
            SPAWNER_SOCKET: f"{tmp_path}/spawner.sock",
            **changes,
        }
        words = [
            f"--state-dir={tmp_path / 'state'}",
            f"--agent-token-file={tmp_path / 'agent.token'}",
            *arguments,
        ]
        told = tmp_path / "told"
        process = programs.Process(
            target=become_the_program, args=(environment, words, str(told))
        )
        process.start()
        process.join(60)
        status, text = process.exitcode, told.read_text()
        assert status is not None
        process.close()
        assert "Traceback" not in text
        assert "t" * 32 not in text
        assert "s" * 32 not in text
        return status, text.strip().splitlines()[-1]

    return started


def test_program_outside_a_hub_says_what_is_missing(run):
    status, line = run(JUPYTERHUB_SERVICE_URL="")
    assert status == 1
    assert "JUPYTERHUB_SERVICE_URL must be set" in line


def test_program_on_an_address_in_use_says_which(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, line = run(JUPYTERHUB_SERVICE_URL=f"http://127.0.0.1:{port}")
    assert status == 1
    assert f"127.0.0.1:{port} cannot be used" in line


def test_program_with_a_token_file_it_cannot_read_says_which(run, tmp_path):
    (tmp_path / "agent.token").mkdir()
    status, line = run()
    assert status == 1
    assert f"{tmp_path / 'agent.token'} cannot be read" in line


def test_program_with_a_missing_configuration_file_says_which(run, tmp_path):
    status, line = run(f"--config={tmp_path / 'nowhere.py'}")
    assert status == 1
    assert "nowhere.py" in line


@pytest.mark.parametrize(
    "argument",
    ["--idle-after=-5", "--sample-interval=often", "--ReclaimService.captures=0"],
)
def test_program_with_a_setting_out_of_its_bounds_says_which(run, argument):
    status, line = run(argument)
    assert status == 1
    name = argument.partition("=")[0].rpartition(".")[2].strip("-")
    assert name.replace("-", "_") in line


@pytest.mark.parametrize("url", ["nonsense", "nosuchdb://x", "sqlite:////proc/x/y"])
def test_program_with_a_journal_that_is_none_says_so(run, url):
    status, line = run(f"--ReclaimService.journal_url={url}")
    assert status == 1
    assert "journal_url is no address" in line or "unable to open" in line


def test_program_takes_settings_from_its_file(run, tmp_path):
    config = tmp_path / "service.py"
    config.write_text("c.ReclaimService.journal_url = 'from-the-file'\n")
    status, line = run(f"--config={config}")
    assert status == 1
    assert "journal_url is no address" in line

"""A demo that does not start says why in a sentence, and leaves nothing behind."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.__main__ import cramped
from demo.causes import cause
from demo.stack import StackError
from demo.user import trail
from tests.support.stack import Stack

LOGS = {
    "the proxy's port": (
        (
            "[W 2026-11-22 11:06:16.462 JupyterHub proxy:783] Running without SSL\n"
            "2026-11-22T11:06:17.736Z [ConfigProxy] \x1b[31merror\x1b[39m: Uncaught"
            " Exception: listen EADDRINUSE: address already in use 127.0.0.1:42773\n"
            "[E 2026-11-22 11:06:46.016 JupyterHub app:4090] later\n"
        ),
        "listen EADDRINUSE: address already in use 127.0.0.1:42773",
    ),
    "a traceback": (
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
            "ModuleNotFoundError: No module named 'jupyterhub'\n"
        ),
        "ModuleNotFoundError: No module named 'jupyterhub'",
    ),
    "nothing wrong": ("[I 2026-11-22 11:07:44.061 JupyterHub app:1] fine\n", ""),
}


@pytest.mark.parametrize(("log", "words"), LOGS.values(), ids=LOGS)
def test_cause_is_the_first_complaint_of_a_log(log: str, words: str) -> None:
    assert cause(log) == words


def test_too_little_room_is_a_sentence_before_anything_starts(tmp_path: Path) -> None:
    assert cramped(tmp_path, 1) == ""
    why = cramped(tmp_path, 10**18)
    assert why.startswith(f"The disk of {tmp_path} has ")
    assert "and the demo needs" in why


def test_pages_that_come_again_stand_once_in_what_a_user_met() -> None:
    assert trail(["200 /a", "500 /b", "500 /b", "200 /a"]) == (
        "200 /a, then 500 /b (2 times), then 200 /a"
    )


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


def test_failed_start_names_the_cause_and_ends_the_service(
    short: Path, taken: int
) -> None:
    stack = Stack(short)
    stack.settings["hub_port"] = taken  # the service is started before it is bound
    with pytest.raises(StackError) as caught, stack:
        pass
    [sentence, log] = str(caught.value).splitlines()
    assert sentence.startswith("The hub ")
    assert str(taken) in sentence
    assert str(stack.folder / "hub.log") in log
    for program in (
        "jupyterhub_gpu_reclaim.service",
        "configurable-http-proxy",
        "agent",
    ):
        assert not named(program, stack.folder)


def named(program: str, folder: Path) -> list[str]:
    """Command lines of a program for that folder, whatever their environment says."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            lines.append(file.read_bytes().decode(errors="replace"))
    return [line for line in lines if program in line and str(folder) in line]

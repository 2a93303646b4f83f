"""A demo that does not start says why in a sentence, and leaves nothing behind."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.stack import StackError
from tests.support.stack import Stack


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

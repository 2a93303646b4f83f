"""The command says how far it is, also when it is ended before its time."""

import os
import signal

import pytest

from simulation import __main__ as command
from simulation.plan import draw
from simulation.runner import Result


@pytest.fixture
def runs(monkeypatch):
    """The seeds that were run, without running them."""
    seeds = []

    def run_seed(seed, patches=()):
        del patches
        seeds.append(seed)
        return Result(draw(seed), turns=5)

    monkeypatch.setattr(command, "run_seed", run_seed)
    return seeds


def test_count_is_printed_again_and_again(runs, monkeypatch, capsys):
    monkeypatch.setattr(command, "COUNT_EVERY", 2)
    assert command.main(["--seeds", "5"]) == 0
    told = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in told if line.endswith("runs")] == [
        "2 runs",
        "4 runs",
        "5 runs",
    ]
    assert runs == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_that_is_told_to_end_prints_its_count(
    runs, monkeypatch, capsys, number
):
    before, run_seed = signal.getsignal(number), command.run_seed

    def interrupted(seed, patches=()):
        if seed == 1:
            os.kill(os.getpid(), number)
        return run_seed(seed, patches)

    monkeypatch.setattr(command, "run_seed", interrupted)
    assert command.main(["--seeds", "1000"]) == 0
    assert runs == [0, 1]
    assert "2 runs, 0 failed" in capsys.readouterr().out
    assert signal.getsignal(number) is before

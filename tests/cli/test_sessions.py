"""Which sessions are meant, for how long, and how a wish has ended: all pure."""

import re
import time
from argparse import ArgumentTypeError

import msgspec
import pytest

from jupyterhub_gpu_reclaim.cli import sessions
from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.cli.sessions.progress import How, outcome
from jupyterhub_gpu_reclaim.cli.sessions.selection import is_idle, key_of
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import (
    Phase,
    SessionFacts,
    SessionKey,
    SessionView,
)
from jupyterhub_gpu_reclaim.common.orders import KINDS

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400)]
)
def test_time_is_understood(text, expected):
    assert sessions.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "h", "-1h", "1y", "1h30m", "9" * 12])
def test_time_that_is_none_is_wrong_usage(text):
    with pytest.raises(ArgumentTypeError):
        sessions.seconds(text)


def test_session_is_named_as_user_and_server():
    assert key_of("ada") == key_of("ada/") == ADA
    assert key_of("bob/train") == BOB
    with pytest.raises(BadRequest):
        key_of("/train")


@pytest.mark.parametrize(
    ("action", "phase", "intent", "how"),
    [
        ("suspend", Phase.RUNNING, "suspend", None),
        ("suspend", Phase.SUSPENDING, "", None),
        ("suspend", Phase.RELEASING, "", None),
        ("suspend", Phase.SUSPENDED, "", How.DONE),
        ("suspend", Phase.RESUMING, "", How.DONE),
        ("suspend", Phase.WARNED, "", How.FAILED),
        ("suspend", Phase.STOPPED, "", How.FAILED),
        ("resume", Phase.SUSPENDED, "resume", None),
        ("resume", Phase.RESUMING, "", None),
        ("resume", Phase.RUNNING, "", How.DONE),
        ("resume", Phase.SUSPENDED, "", How.FAILED),
        ("save", Phase.RUNNING, "save", None),
        ("save", Phase.RUNNING, "suspend", None),
        ("save", Phase.SUSPENDING, "", None),
        ("save", Phase.SUSPENDED, "", How.DONE),
        ("save", Phase.RUNNING, "", How.FAILED),
        ("save", Phase.STOPPED, "", How.FAILED),
        ("nap", Phase.RUNNING, "nap", None),
        ("nap", Phase.NAPPING, "", How.DONE),
        ("nap", Phase.RUNNING, "", How.FAILED),
        ("wake", Phase.RUNNING, "", How.DONE),
        ("wake", Phase.NAPPING, "", How.FAILED),
        ("wake", Phase.SUSPENDED, "", How.FAILED),
    ],
)
def test_outcome_follows_from_phase_and_wish(action, phase, intent, how):
    facts = SessionFacts(intent=intent)
    before = SessionView(key=ADA, phase=Phase.RUNNING, since=1.0)
    view = msgspec.structs.replace(before, phase=phase, facts=facts)
    found = outcome(KINDS[action](), before, view)
    assert (found and found[0]) == how
    if how is How.FAILED:
        assert found[1].message


def test_nothing_known_is_never_idle():
    view = SessionView(key=ADA, phase=Phase.RUNNING, since=1.0)
    assert not is_idle(view, 0, time.time())


#: Of the commands that ask the service.
COMMANDS = (
    *("sessions", "why", "suspend", "resume", "nap", "wake", "renew-login", "keep"),
    *("revoke-tabs", "end-tree", "saved", "bring-back"),
    *("save", "drain", "undrain"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_option_that_the_command_has_not(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = capsys.readouterr().out
    lines = [line for line in told.splitlines() if line.startswith("  -")]
    option = r"(?<![\w-])--[a-z-]+"
    assert set(re.findall(option, told)) == set(re.findall(option, "\n".join(lines)))


def test_every_command_says_what_it_does_in_a_sentence(capsys):
    for words in (
        ["nap"],
        ["wake"],
        ["config", "check"],
        ["criu", "install"],
        ["criu", "check"],
        ["agents", "check"],
        ["store", "ls"],
    ):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        told = capsys.readouterr().out.split("\n\n")[1]
        assert re.fullmatch(r"[A-Z][^.]+\.", told, re.DOTALL), (words, told)
        assert "gpu" not in told  # an abbreviation stays one

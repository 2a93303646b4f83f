"""A process tree with an init and namespaces of its own: started, held, ended."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.session_init import (
    command_line,
    launcher,
    session_init,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The init of a tree, which no other process is: pid, and its start in clock ticks.
Tree = SessionInit
#: Agents leave trees of another realm alone.
_REALM: Final = "engine"
#: Root's own interpreter, which must not import what lies in the working directory.
_PYTHON: Final = (sys.executable, "-I", "-S")
_LAUNCH_SECONDS: Final = 20.0
_END_SECONDS: Final = 20.0


def start(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
) -> Tree:
    """Start a program in pid, mount, IPC and UTS namespaces of its own.

    It has the network of this process, and outlives it. What it prints goes where this
    process' output goes, as long as that is there. It must not keep what it was started
    with for ever: a checkpoint holds its environment.

    Args:
        command: the program with its arguments.
        env: its whole environment; that of this process by default.
        cwd: where it starts.

    Raises:
        Refused: ``launch_failed``: it cannot be given namespaces, or an init.
    """
    return _launch(["--chdir", cwd, "--", *command], env, holding=False)


def hold() -> Tree:
    """Make an empty place for a tree that comes back.

    Raises:
        Refused: see :func:`start`.
    """
    return _launch([], None, holding=True)


def _launch(words: list[str], env: Mapping[str, str] | None, *, holding: bool) -> Tree:
    """Run the launcher, and read what it reports."""
    incarnation = secrets.token_hex(8)
    said = command_line.InitArguments(incarnation, "", "", _REALM, holding)
    init = [*_PYTHON, session_init.__file__, *command_line.written(said), *words]
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as report:
        try:
            process = subprocess.Popen(
                [*_PYTHON, launcher.__file__, "--report-fd", str(writer), "--", *init],
                stdin=subprocess.DEVNULL,
                env=None if env is None else dict(env),
                pass_fds=(writer,),
            )
        finally:
            os.close(writer)
        try:
            process.wait(_LAUNCH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Refused(
                Reason.TIMED_OUT, step="launch", seconds=_LAUNCH_SECONDS
            ) from None
        facts = launcher.reported(report.read())
    if "error" in facts or not facts.get("start"):
        why = facts.get("error") or "Its init has not reported."
        raise Refused(Reason.LAUNCH_FAILED, why=why)
    return Tree(facts["pid"], facts["start"])


def end(tree: Tree) -> None:
    """Kill a tree and its init, running or not; nothing of it is there afterwards.

    Raises:
        ReclaimError: ``timed_out``: the kernel holds one of its processes.
    """
    try:
        processes.kill_session(tree.init_pid, tree.init_start, timeout=_END_SECONDS)
    except NotFound:
        return  # it has ended by itself

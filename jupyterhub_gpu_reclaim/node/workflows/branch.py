"""Brings a branch back: another session's programs under a server of their own.

A branch has what another session of its user had, and comes back beside it. The
kernels go on as they were. The server cannot: its name, its login and the address of
its pages are the other session's, and stand in its memory. So its process is made to
execute the server's own command again, under the name and with the login of its new
place (``node/jupyter/branched_server.py``). It keeps its pid, so that the kernels are
its children as before, and begins with them. Terminals end with the old server.

In the network of the machine the ports belong to the other session, too. There they are
others, and so they are at both ends of the session's own connections; the new server is
told. Only the server's and its kernels' can be others: of any other program it is not
known who calls it, and by which number. IPython's kernel has one beside those of its
connection file, for what its forks print; it is told by the new server. It cannot be
told from one that the notebook itself listens on, so one for each kernel is taken for
that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, ports
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from jupyterhub_gpu_reclaim.node.jupyter import branched_server
from jupyterhub_gpu_reclaim.node.jupyter.connection import find_connections
from jupyterhub_gpu_reclaim.node.jupyter.server import read_login
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import FILES_IMAGE
from jupyterhub_gpu_reclaim.session_init.command_line import INLINE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.jupyter.connection import ConnectionFile
    from jupyterhub_gpu_reclaim.node.jupyter.server import ServerLogin
    from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
        CheckpointContents,
    )
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session

_SECONDS = 10.0
#: Variables that a fresh start is given, and programs of an old one must not keep.
_OWN = (b"JUPYTERHUB_", b"JPY_API_TOKEN=", b"GPU_RECLAIM_")
#: Holds the text of the new server's first program; none of its programs inherits it.
_VARIABLE = "GPU_RECLAIM_SERVER"
_RUN = f'import os; exec(compile(os.environ.pop("{_VARIABLE}"), "branch", "exec"))'
#: Options of Python's whose value is the next word.
_WITH_VALUE = (b"-W", b"-X")
#: The last option of an interpreter, with a program as its value.
_PROGRAM = (b"-c", b"-m")


def refuse(there: CheckpointContents) -> None:
    """Refuse what cannot come back under another name, as far as it is known.

    Raises:
        Refused: ``branch_impossible``.
    """
    if not there.identity.port or not there.world.kernels:
        why = "it has no kernel, and only kernels come along"
        raise Refused(Reason.BRANCH_IMPOSSIBLE, why=why)


def moved_ports(there: CheckpointContents, session: Session) -> dict[int, int]:
    """New ports of a branch's listeners, by the old; none if the network is its own."""
    if not there.checkpoint.info.branch_of or not there.world.shares_network:
        return {}
    old = sorted(inet.listening(there.checkpoint.read(FILES_IMAGE)))
    return dict(zip(old, ports.choose(session.init_pid, len(old)), strict=True))


def become(
    session: Session,
    there: CheckpointContents,
    tree: Snapshot,
    moved: Mapping[int, int],
) -> ServerLogin:
    """Have the stopped server execute its command again, as the new place's.

    Returns:
        Its login from now on.

    Raises:
        RestoreFailed: ``branch_impossible``; nothing of it has run.
    """
    kernels = find_connections(
        session.init_pid, [one.pid for one in tree.processes], there.world.kernels
    )
    _refuse_others(there, kernels, moved)
    (server,) = (p.pid for p in tree.processes if p.ns_pid == there.world.server)
    words = procfs.words(server, "cmdline")
    here = procfs.words(session.init_pid, "environ")
    former = procfs.words(server, "environ")
    given = {
        _VARIABLE: Path(branched_server.__file__).read_bytes(),
        branched_server.PORTS: codec.encode({str(a): b for a, b in moved.items()}),
    }
    environment = [
        *(word for word in former if not word.startswith(_OWN)),
        *(word for word in here if word.startswith(_OWN) and not _is_init(word)),
        *(name.encode() + b"=" + value for name, value in given.items()),
    ]
    program = os.fsdecode(words[0]) if words[0][:1] == b"/" else "/proc/self/exe"
    try:
        ptrace.execute(server, program, again(words), environment, seconds=_SECONDS)
        return read_login(server)
    except OSError as error:
        why = "its server cannot be started again"
        raise _impossible(why, detail=str(error)) from error


def _is_init(word: bytes) -> bool:
    """Whether that variable is the init's own text."""
    return word.startswith(f"{INLINE_VARIABLE}=".encode())


def again(words: Sequence[bytes]) -> list[bytes]:
    """The command line of a new server in the place of that one. Pure.

    Raises:
        RestoreFailed: it is no program of Python's.
    """
    run = [b"-c", _RUN.encode()]
    if not words or "python" not in Path(os.fsdecode(words[0])).name:
        raise _impossible("its server is no program of Python's")
    at = 1
    while at < len(words) and words[at][:1] == b"-" and words[at] not in _PROGRAM:
        at += 2 if words[at] in _WITH_VALUE else 1
    is_branch = [*words[at : at + 2]] == run
    return [*words[:at], *run, *words[at + 2 * is_branch :]]


def _refuse_others(
    there: CheckpointContents,
    kernels: Mapping[str, ConnectionFile],
    moved: Mapping[int, int],
) -> None:
    """Refuse kernels whose connection is lost, and ports that are not theirs."""
    if lost := set(there.world.kernels) - kernels.keys():
        why = f"the connection file of kernel {min(lost)} is not there any more"
        raise _impossible(why)
    known = {there.identity.port}
    for one in kernels.values():
        known |= {one.shell_port, one.control_port, one.stdin_port}
        known |= {one.iopub_port, one.hb_port}
    others = moved.keys() - known
    if len(others) > len(kernels):
        why = f"a program of it listens on port {min(others)}, which the session needs"
        raise _impossible(why)


def _impossible(why: str, detail: str = "") -> RestoreFailed:
    return RestoreFailed(Reason.BRANCH_IMPOSSIBLE, why=why, detail=detail)

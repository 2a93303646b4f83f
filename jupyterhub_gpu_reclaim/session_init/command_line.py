"""Writes, recognises and reads the command line of a session's init.

The Hub's side finds an init again after its own restart, and the agent finds all inits
of a node. The command line alone proves nothing: in a container its user writes it, so
each caller judges first whose process it is.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.bounds import Name, UserId
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Stands in one of the first words; the next one has the arguments.
_MARKER: Final = b"session_init"
_MARKED_WORDS: Final = 6
#: In a container the text of the init is this variable's value.
INLINE_VARIABLE: Final = "GPU_RECLAIM_INIT"
#: Labels of a Docker container, by the Hub for the agent: incarnation, and arguments.
INCARNATION_LABEL: Final = "gpu-reclaim.incarnation"
ARGUMENTS_LABEL: Final = "gpu-reclaim.init"
#: Runs that text; no program of the session inherits it.
_RUN_INLINE: Final = (
    f'import os; exec(compile(os.environ.pop("{INLINE_VARIABLE}"), "session_init",'
    ' "exec"))'
)


class SystemUser(msgspec.Struct, frozen=True):
    """User that the programs of a session on the machine itself run as."""

    # A holding init has it, too: the rights of a fresh start on that day.

    uid: UserId
    gid: UserId
    groups: tuple[UserId, ...] = ()
    #: No program may gain more rights than it has, as by ``sudo``.
    no_new_privileges: bool = False


class InitArguments(msgspec.Struct, frozen=True):
    """The one word of the init's command line, as JSON; ``session_init`` reads it."""

    incarnation: Name
    user: Name
    server: Name = ""
    realm: Name = ""
    holding: bool = False  #: it waits for a tree to be restored
    session: Name = ""  #: id of the session, through all its returns
    account: Name = ""  #: of the Hub's user that it belongs to
    system_user: SystemUser | None = None  #: None: as the init itself
    chdir: str = ""
    relay: bool = True  #: whether the init copies the session's output


def written(arguments: InitArguments) -> str:
    return codec.encode(arguments).decode()


def labels(arguments: InitArguments) -> dict[str, str]:
    return {
        INCARNATION_LABEL: arguments.incarnation,
        ARGUMENTS_LABEL: written(arguments),
    }


def labelled(labels: Mapping[str, str] | None) -> InitArguments | None:
    """The init of a container with these labels; None: it has none of ours."""
    with suppress(BadRequest):
        return codec.decode((labels or {}).get(ARGUMENTS_LABEL, ""), InitArguments)
    return None


def inline(python: str) -> tuple[str, str, str]:
    """The init as a program of an image that does not have its file."""
    # Its text is in `inline_environment`: entry points print the command that they run.
    return (python, "-c", _RUN_INLINE)


@cache
def inline_environment() -> dict[str, str]:
    return {INLINE_VARIABLE: Path(session_init.__file__).read_text()}


def parse(words: Sequence[bytes]) -> InitArguments | None:
    """Parse an init's command line; None for any other."""
    for word, arguments in pairwise(words[: _MARKED_WORDS + 1]):
        if _MARKER in word:
            try:
                return codec.decode(arguments, InitArguments)
            except BadRequest:  # or with a name that no page may show
                continue
    return None

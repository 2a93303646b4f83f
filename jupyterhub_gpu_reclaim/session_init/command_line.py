"""Writes, recognises and reads the command line of a session's init.

The Hub's side finds an init again after its own restart, and the agent finds all inits
of a node. The command line alone proves nothing: in a container its user writes it, so
each caller judges first whose process it is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.bounds import is_name
from jupyterhub_gpu_reclaim.session_init import session_init

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Stands in one of the first words, also where an init was started with its whole text
#: as the argument of ``python3 -c``, as in a container it was at first.
_MARKER: Final = b"session_init"
_MARKED_WORDS: Final = 6
_MODES: Final = ("start", "hold")
#: In a container the text of the init is this variable's value.
INLINE_VARIABLE: Final = "GPU_RECLAIM_INIT"
#: Runs that text; no program of the session inherits it.
_RUN_INLINE: Final = (
    f'import os; exec(compile(os.environ.pop("{INLINE_VARIABLE}"), "session_init",'
    ' "exec"))'
)


class SystemUser(NamedTuple):
    """User that the programs of a session on the machine itself run as."""

    # A holding init has it, too: the rights of a fresh start on that day.

    uid: int
    gid: int
    groups: tuple[int, ...]
    #: No program may gain more rights than it has, as by ``sudo``.
    no_new_privileges: bool = False


class InitArguments(NamedTuple):
    incarnation: str
    user: str
    server: str
    realm: str
    holding: bool  #: it waits for a tree to be restored
    session: str = ""  #: id of the session, through all its returns
    account: str = ""  #: of the Hub's user that it belongs to
    system_user: SystemUser | None = None  #: None: as the init itself


def written(arguments: InitArguments) -> list[str]:
    return [
        "hold" if arguments.holding else "start",
        "--incarnation",
        arguments.incarnation,
        # In one word each: a name may look like an option.
        f"--user={arguments.user}",
        f"--server={arguments.server}",
        f"--realm={arguments.realm}",
        f"--session={arguments.session}",
        f"--account={arguments.account}",
        "--relay",
        *_written_user(arguments.system_user),
    ]


def _written_user(user: SystemUser | None) -> list[str]:
    if user is None:
        return []
    words = ["--uid", str(user.uid), "--gid", str(user.gid)]
    words += ["--groups", ",".join(map(str, user.groups))]
    return [*words, "--no-new-privileges", str(int(user.no_new_privileges))]


def inline(python: str) -> tuple[str, str, str]:
    """The init as a program of an image that does not have its file."""
    # Its text is in `inline_environment`: entry points print the command that they run.
    return (python, "-c", _RUN_INLINE)


@cache
def inline_environment() -> dict[str, str]:
    return {INLINE_VARIABLE: Path(session_init.__file__).read_text()}


def is_init(words: Sequence[bytes]) -> bool:
    return any(_MARKER in word for word in words[:_MARKED_WORDS])


def parse(words: Sequence[bytes]) -> InitArguments | None:
    """Parse ``start|hold --incarnation I --user=U --server=S … [-- CMD…]``."""
    # None for any other command line, and one with a name that no page may show.
    if not is_init(words):
        return None
    text = [word.decode("utf-8", "replace") for word in words]
    mode_at = next((i for i, word in enumerate(text) if word in _MODES), None)
    if mode_at is None:
        return None
    options = text[mode_at + 1 :]
    if "--" in options:
        options = options[: options.index("--")]
    values = _values(options)
    if not all(map(is_name, values.values())):
        return None  # not ours: no such name is allowed
    return InitArguments(
        incarnation=values.get("--incarnation", ""),
        user=values.get("--user", ""),
        server=values.get("--server", ""),
        realm=values.get("--realm", ""),
        session=values.get("--session", ""),
        account=values.get("--account", ""),
        holding=text[mode_at] == "hold",
        system_user=_system_user(values),
    )


def _system_user(values: dict[str, str]) -> SystemUser | None:
    try:
        return SystemUser(
            int(values["--uid"]),
            int(values["--gid"]),
            tuple(int(group) for group in values["--groups"].split(",") if group),
            values.get("--no-new-privileges") == "1",
        )
    except (KeyError, ValueError):
        return None


def _values(options: list[str]) -> dict[str, str]:
    """Options with their values, in one word or two; a value is never a name."""
    values: dict[str, str] = {}
    words = iter(options)
    for word in words:
        if word.startswith("--") and word != "--relay":
            name, equals, value = word.partition("=")
            values.setdefault(name, value if equals else next(words, ""))
    return values

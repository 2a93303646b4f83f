"""Reads a ``jupyterhub_config.py`` as the Hub would, and reports mistakes in it.

JupyterHub's own loader runs the file in this process, for as long as it takes, with
whatever it does; nothing is started, and ``configure(c)`` makes nothing here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any

from jupyterhub.app import JupyterHub
from jupyterhub.auth import Authenticator, PAMAuthenticator

from jupyterhub_gpu_reclaim.hub import config, config_check, self_check
from jupyterhub_gpu_reclaim.hub.merging import service_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def problems_of(file: Path, notes: list[str]) -> list[str]:
    """The mistakes in a configuration; ``notes`` gets what is good to know."""
    file = file.absolute()
    with _hub() as hub:
        try:
            with config.only_judging():
                hub.load_config_file(str(file))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any Python may be in it
            return [f"The Hub cannot read it: {_said(error, file)}"]
        found = self_check.found_wrong(hub.config)
        if found is None:
            return [
                "configure(c) is not called in it, so no session is ever suspended."
            ]
        environment = (service_of(hub.config) or {})["environment"]
        found += self_check.late(hub.config, environment)
        found += config_check.spawners(hub.config)
        try:
            notes += _hooks_told(hub)
            return found + self_check.warnings(hub, environment)
        except Exception as error:  # noqa: BLE001 - anybody's classes
            return [*found, f"The Hub would not start: {_said(error, file)}"]


@contextlib.contextmanager
def _hub() -> Iterator[JupyterHub]:
    """A Hub that is never started; the file's own output goes to stderr."""
    hub = JupyterHub.instance()
    hub.raise_config_file_errors = True
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield hub
    finally:
        logging.disable(disabled)
        JupyterHub.clear_instance()


def _said(error: BaseException, file: Path) -> str:
    """An error in one sentence, with the last line of the file that led to it."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # of a value that the Hub does not take
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    said = str(error)
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines, said = [error.lineno], error.msg
    where = f"line {lines[-1]}: " if lines else ""
    why = " ".join(said.split()) or "it gives no reason"
    return f"{where}{type(error).__name__}: {why}"


_GIVES = (
    "it runs; what it sets does not reach the session, and other cards"
    " (CUDA_VISIBLE_DEVICES) or mounts or another user refuse the return;"
    " spawner.reclaim_suspended is true"
)
#: By setting of a spawner: at a suspend, at a return, at an end.
_SEEN = {
    "pre_spawn_hook": ("nothing", _GIVES, "nothing"),
    "auth_state_hook": ("nothing", f"{_GIVES}; also for the page before", "nothing"),
    "modify_pod_hook": ("nothing", _GIVES, "nothing"),
    "post_stop_hook": (
        "nothing",
        "nothing, also where it fails",
        (
            "it runs; for a session that was deleted while suspended: some seconds"
            " after that, or, where a part was away then or it was set aside, before"
            " the server's next start"
        ),
    ),
    "options_form": ("nothing", "it is not shown", "nothing"),
    "apply_user_options": (
        "nothing",
        "it runs with the last start's choice",
        "nothing",
    ),
    "post_start_cmd": ("nothing", "it does not run", "nothing"),
}


def _hooks_told(hub: Any) -> list[str]:
    """The hooks that a Hub has, and when each of them runs.

    JupyterHub has one stop and one start. To its hooks a suspend looks like a stop, and
    a return like a start, unless we prevent that. None of it is a mistake.
    """
    return [
        f"{name}: at a suspend: {suspend}; at a return: {back}; at an end: {end}."
        for name, (suspend, back, end) in _hooks(hub)
    ]


def _hooks(hub: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    sections = {each.__name__ for each in hub.spawner_class.__mro__}
    for section in sorted(sections & hub.config.keys()):
        values = hub.config[section]
        for name, seen in _SEEN.items():
            if values.get(name):
                yield f"c.{section}.{name}", seen
    yield from _of_logins(hub)


def _of_logins(hub: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    # JupyterHub calls these in pairs; a suspend is one half.
    owner = hub.authenticator_class
    runs = "it runs; spawner.reclaim_suspended is true"
    for name, seen in {
        "pre_spawn_start": ("nothing", runs, "nothing"),
        "post_spawn_stop": (runs, f"where that fails, {runs}", "it runs after a stop"),
    }.items():
        usual = {getattr(each, name) for each in (Authenticator, PAMAuthenticator)}
        if getattr(owner, name) not in usual:
            yield f"{owner.__name__}.{name}", seen

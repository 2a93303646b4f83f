"""Reads a ``jupyterhub_config.py`` as the Hub would, and reports mistakes in it.

JupyterHub's own loader runs the file in this process, for as long as it takes, with
whatever it does; nothing is started, and ``configure(c)`` makes nothing here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING

from jupyterhub.app import JupyterHub

from jupyterhub_gpu_reclaim.hub import config, config_check, self_check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def problems_of(file: Path) -> list[str]:
    """The mistakes in a configuration."""
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
        found += config_check.misplaced(hub.config)
        found += config_check.spawners(hub.config)
        try:
            return found + self_check.warnings(hub)
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

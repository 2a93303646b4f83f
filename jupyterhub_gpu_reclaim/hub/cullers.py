"""Finds services of the Hub that end idle servers without asking us.

jupyterhub-idle-culler is a service of the Hub; Zero to JupyterHub and TLJH configure
it, too, each by its own keys, but all of it becomes words of a command. Of Jupyter's
own cullers, inside a session, its server tells (``lab/status.py``).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Names of jupyterhub-idle-culler, and of its predecessor, an example script, in a
#: command.
_CULLER = re.compile(r"idle[-_]culler|cull[-_]idle")
_CONFIG = re.compile(r"--(?:config|IdleCuller\.config_file)[= ](\S+)")
#: Of a culler's own configuration; the age of a server asks no hook.
_HOOK = re.compile(r"^[^#]*IdleCuller\.cull_arbiter_hook\s*=", re.MULTILINE)
_AGE = re.compile(r"^[^#]*max[-_]age", re.MULTILINE)


def is_culler(service: Mapping[str, Any]) -> bool:
    """Whether a service of the Hub ends idle servers, or deletes idle users."""
    return bool(_CULLER.search(f"{service.get('name', '')} {_command(service)}"))


def unasking(services: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sentences about cullers of the Hub that end a session whether it is saved."""
    return [
        f"The service {service.get('name', '')!r} ends servers by its own rules, and"
        " nothing of them is saved. Take it out: unused sessions are suspended. Or give"
        " it our hook, and no max_age (docs/how-to/cullers.md)."
        for service in services
        if _command(service) and is_culler(service) and not _asks_us(service)
    ]


def _command(service: Mapping[str, Any]) -> str:
    command = service.get("command") or []
    return command if isinstance(command, str) else " ".join(map(str, command))


def _asks_us(service: Mapping[str, Any]) -> bool:
    words, text = _command(service), ""
    if config := _CONFIG.search(words):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = Path(service.get("cwd") or ".", config[1]).read_text()
    return bool(_HOOK.search(text)) and not _AGE.search(f"{words}\n{text}")

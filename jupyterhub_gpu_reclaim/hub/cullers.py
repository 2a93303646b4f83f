"""Finds cullers of servers that would end them before they are saved.

jupyterhub-idle-culler is a service of the Hub; Zero to JupyterHub and TLJH configure
it, too, each by its own keys, but all of it becomes words of a command. Of Jupyter's
own cullers, inside a session, its server tells (``lab/status.py``).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Names of jupyterhub-idle-culler, and of its predecessor, an example script, in a
#: command.
_CULLER = re.compile(r"idle[-_]culler|cull[-_]idle")


@dataclass(frozen=True)
class IdleTimes:
    """Our own idle times, in seconds."""

    idle_after: float  #: 0: no session is suspended for being idle
    warn_for: float
    keep_limit: float


@dataclass(frozen=True)
class Culler:
    """A service that ends idle servers."""

    name: str
    timeout: float = 600.0
    max_age: float = 0.0
    #: Whether the culler decides by a function, which may ask us (``culler_hook.py``).
    by_hook: bool = False


def is_culler(service: Mapping[str, Any]) -> bool:
    """Whether a service of the Hub ends idle servers, or deletes idle users."""
    words = [str(service.get("name", "")), *_words(service)]
    return any(_CULLER.search(word) for word in words)


def of_services(services: Iterable[Mapping[str, Any]]) -> list[Culler]:
    return [
        _read(service) for service in services if _words(service) and is_culler(service)
    ]


def early(services: Iterable[Mapping[str, Any]], times: IdleTimes) -> list[str]:
    """Sentences about cullers of the Hub that end a session before it is saved."""
    found = []
    saved_after = times.idle_after + times.warn_for
    for culler in of_services(services):
        called = f"The service {culler.name!r}"
        if culler.max_age > 0:
            found.append(
                f"{called} ends every server {culler.max_age:g} s after its start"
                " (--max-age), in use or not, and nothing of it is saved."
            )
        if culler.by_hook or not times.idle_after:
            continue
        if culler.timeout <= saved_after:
            found.append(
                f"{called} ends servers after {culler.timeout:g} s without use, before"
                f" they are suspended (after {saved_after:g} s), and nothing of them is"
                f" saved. Take it out, or give it a --timeout above {saved_after:g}"
                " and our hook (docs/how-to/cullers.md)."
            )
        elif culler.timeout <= times.keep_limit:
            found.append(
                f"{called} ends servers after {culler.timeout:g} s without use, also"
                " those that somebody has kept with Keep. Take it out, or give it our"
                " hook (docs/how-to/cullers.md)."
            )
    return found


# --- reading -------------------------------------------------------------------------


def _words(service: Mapping[str, Any]) -> list[str]:
    command = service.get("command") or []
    return command.split() if isinstance(command, str) else [str(w) for w in command]


def _read(service: Mapping[str, Any]) -> Culler:
    words = " ".join(_words(service))
    said = {name: _number(words, name) for name in ("timeout", "max-age")}
    config = re.search(r"--(?:config|IdleCuller\.config_file)[= ](\S+)", words)
    text = ""
    if config is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = Path(service.get("cwd") or ".", config[1]).read_text()
    timeout, age = (_number_in_python(text, name) for name in ("timeout", "max_age"))
    return Culler(
        name=str(service.get("name", "")),
        timeout=said["timeout"] or timeout or 600.0,
        max_age=said["max-age"] or age or 0.0,
        by_hook=bool(
            re.search(r"^[^#]*IdleCuller\.cull_arbiter_hook\s*=", text, re.MULTILINE)
        ),
    )


def _number(words: str, name: str) -> float | None:
    trait = name.replace("-", "_")
    found = re.findall(rf"--(?:{name}|IdleCuller\.{trait})[= ](\d+(?:\.\d+)?)", words)
    return float(found[-1]) if found else None


def _number_in_python(text: str, trait: str) -> float | None:
    # A computed one is not seen.
    found = re.findall(
        rf"^[^#]*IdleCuller\.{trait}\s*=\s*(\d+(?:\.\d+)?)", text, re.MULTILINE
    )
    return float(found[-1]) if found else None

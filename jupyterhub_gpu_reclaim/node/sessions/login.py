"""Reads a session's Hub login and server address from its first program's environment.

A checkpoint carries the login as its identity; sampling needs the address. Neither is
logged or written to disk here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.linux import process_environment

_PREFIX = b"JUPYTERHUB_"
#: What may stand in a request line or a header as it is: visible ASCII.
_WORD = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Login:
    """How to ask a session's own server, and under which name it runs.

    Attributes:
        port: its TCP port; 0 where the environment does not say.
        prefix: path of its pages, with a slash at both ends.
        token: its own API token; empty where there is none.
        environment: the ``JUPYTERHUB_…`` variables.
    """

    port: int
    prefix: str
    token: str = field(repr=False)
    uid: int
    cwd: str
    environment: dict[str, str] = field(repr=False)

    @property
    def identity(self) -> Identity:
        """As it goes into a checkpoint."""
        return Identity(
            api_token=self.token,
            port=self.port,
            environment=self.environment,
            uid=self.uid,
            cwd=self.cwd,
        )


def read_login(pid: int) -> Login:
    """The login of the session whose first program has that host pid.

    Raises:
        OSError: it has ended, may not be read, or keeps its reader waiting.
    """
    process = Path(f"/proc/{pid}")
    environment = _environment(process_environment.words(pid, "environ"))
    port, path = _address(environment.get("JUPYTERHUB_SERVICE_URL", ""))
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX") or path or "/"
    token = environment.get("JUPYTERHUB_API_TOKEN", "")
    if not (_WORD.fullmatch(prefix) and _WORD.fullmatch(token)):
        port, prefix = 0, "/"  # a request must not carry what is not valid HTTP
    uid = next(
        int(line.split()[1])
        for line in (process / "status").read_text().splitlines()
        if line.startswith("Uid:")
    )
    return Login(
        port=port,
        prefix="/" + prefix.strip("/") + "/" if prefix.strip("/") else "/",
        token=token,
        uid=uid,
        cwd=str((process / "cwd").readlink()),
        environment=environment,
    )


def _address(url: str) -> tuple[int, str]:
    """Port (0 for none) and path of a URL; the user may have put anything there."""
    try:
        address = urlsplit(url)
        port = address.port or 0
    except ValueError:
        return 0, ""
    return port, address.path


def _environment(words: list[bytes]) -> dict[str, str]:
    """The ``JUPYTERHUB_…`` variables of an environment."""
    pairs = (
        word.decode("utf-8", "replace").partition("=")
        for word in words
        if word.startswith(_PREFIX)
    )
    return {name: value for name, _, value in pairs}

"""Variables that the Hub passes to its service, checked once at the start.

Everything that is missing is named in one sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Path of the socket that the Hub's process asks at.
SPAWNER_SOCKET = "GPU_RECLAIM_SPAWNER_SOCKET"
#: The secret of the keys that open tabs show (``common/auth/tab_tokens.py``).
SPAWNER_TOKEN = "GPU_RECLAIM_SPAWNER_TOKEN"  # noqa: S105 - a variable's name
#: What ``configure(c)`` found wrong with the settings: a JSON list of sentences.
PROBLEMS = "GPU_RECLAIM_SETTINGS_PROBLEMS"
#: What the Hub's start found to defeat us: a JSON list of sentences.
WARNINGS = "GPU_RECLAIM_WARNINGS"
#: What the Hub announces on its pages (``template_vars``), as HTML.
ANNOUNCEMENT = "GPU_RECLAIM_ANNOUNCEMENT"
_NEEDED = (
    "JUPYTERHUB_API_TOKEN",
    "JUPYTERHUB_API_URL",
    "JUPYTERHUB_SERVICE_URL",
    "JUPYTERHUB_SERVICE_PREFIX",
    SPAWNER_SOCKET,
    SPAWNER_TOKEN,
)


@dataclass(frozen=True)
class HubEnvironment:
    """Addresses and secrets from the Hub; secrets never show when printed."""

    api_url: str
    host: str
    port: int
    prefix: str
    hub_prefix: str
    hub_host: str
    api_token: str = field(repr=False)
    spawner_token: str = field(repr=False)
    spawner_socket: Path
    #: Under ``JupyterHub.internal_ssl``: the Hub's certificates, and ours with its key.
    hub_ca: str = ""
    own: tuple[str, str] | None = None
    warnings: tuple[str, ...] = ()  #: about the Hub's configuration, in sentences
    problems: tuple[str, ...] = ()  #: with our settings, likewise
    announcement: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> HubEnvironment:
        """Read them from the environment.

        Raises:
            Refused: something is missing or invalid.
        """
        missing = [name for name in _NEEDED if not environment.get(name)]
        if missing:
            raise _refused(
                f"{', '.join(missing)} must be set: this program is run by JupyterHub"
                " as a managed service (see hub.config.configure)."
            )
        host, port = _address(environment["JUPYTERHUB_SERVICE_URL"])
        certificate = environment.get("JUPYTERHUB_SSL_CERTFILE")
        key = environment.get("JUPYTERHUB_SSL_KEYFILE")
        base = _slashed(environment.get("JUPYTERHUB_BASE_URL", "/"))
        return cls(
            api_url=environment["JUPYTERHUB_API_URL"],
            host=host,
            port=port,
            prefix=_slashed(environment["JUPYTERHUB_SERVICE_PREFIX"]),
            hub_prefix=f"{base}hub/",
            hub_host=environment.get("JUPYTERHUB_HOST", ""),
            api_token=environment["JUPYTERHUB_API_TOKEN"],
            spawner_token=environment[SPAWNER_TOKEN],
            spawner_socket=Path(environment[SPAWNER_SOCKET]),
            hub_ca=environment.get("JUPYTERHUB_SSL_CLIENT_CA", ""),
            own=(certificate, key) if certificate and key else None,
            warnings=tuple(json.loads(environment.get(WARNINGS) or "[]")),
            problems=tuple(json.loads(environment.get(PROBLEMS) or "[]")),
            announcement=environment.get(ANNOUNCEMENT, ""),
        )


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass  # no number where the port stands: said below
    what = f"The service's address {url!r} must be of the form http://127.0.0.1:10202."
    raise _refused(what)


def _slashed(path: str) -> str:
    inner = path.strip("/")
    return f"/{inner}/" if inner else "/"


def _refused(what: str) -> Refused:
    return Refused(Reason.SETTING_INVALID, what=what)

"""Options of an object store, its address and login, checked before they are used.

A login comes from the environment, from the machine (instance metadata, workload
identity) or from a file that only its owner can read; never from the URL, the command
line or the agent's configuration, which get into process lists and logs.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from obstore.store import from_url

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.object_errors import answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")
#: Options of the connection; all others are of the store.
_CLIENT = ("root_certificate", "proxy_url")
_SECRET = ("secret", "token", "password", "sas", "account_key", "access_key", "bearer")
_NOT_SECRET = ("access_key_id", "token_file", "_uri")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_MAX_FILE_BYTES = 64 * 1024
#: A part of 5 MiB over a slow line; a request that hangs is repeated after that.
_REQUEST = timedelta(seconds=120)
_CONNECT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """An object store's address, its options, and the file with the secret ones.

    The address is ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
    ``az://container/prefix``. Options are obstore's (``endpoint``, ``region``, …), or
    ``root_certificate`` (path of a PEM file) and ``proxy_url``. The file is a JSON
    object with more options, mode 0600. Raises ``BadRequest``.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options_file: str = ""

    def __post_init__(self) -> None:
        _check_url(self.url)
        for name in self.options:
            if _is_secret(name):
                _refuse(
                    f"The option {name} is a secret: put it into the options file or"
                    " the environment."
                )

    def spec(self) -> dict[str, Any]:
        """For :meth:`from_spec` in another process; names the file only."""
        return {
            "url": self.url,
            "options": dict(self.options),
            "options_file": self.options_file,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> ObjectOptions:
        return cls(spec["url"], spec["options"], spec["options_file"])

    def all(self) -> dict[str, str]:
        """Every option; BadRequest: the file is missing, bad, or open to others."""
        return {**self.options, **_read_file(self.options_file)}


def make_store(
    options: ObjectOptions, retries: Mapping[str, Any], patience: float
) -> ObjectStore:
    """Make obstore's ``ObjectStore``; connects to nothing."""
    config = options.all()
    client: dict[str, Any] = {"timeout": _REQUEST, "connect_timeout": _CONNECT}
    client |= {name: config.pop(name) for name in _CLIENT if name in config}
    if path := client.get("root_certificate"):
        client["root_certificate"] = _read_certificate(path)
    if urlsplit(config.get("endpoint", "")).hostname in _LOOPBACK:
        client["allow_http"] = True
    retry: Any = {**retries, "retry_timeout": timedelta(seconds=patience)}
    given: Any = {"config": config, "client_options": client}
    with answers("the store's options"):
        return from_url(options.url, retry_config=retry, **given)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        _refuse(f"A store is a folder or begins with one of {', '.join(SCHEMES)}.")
    if parts.username or parts.password or parts.query or parts.fragment:
        _refuse(
            "A store's address is scheme://bucket/prefix; a login is not part of it."
        )
    if not parts.netloc:
        _refuse("A store's address names a bucket: scheme://bucket/prefix.")


def _is_secret(name: str) -> bool:
    name = name.lower()
    if name.endswith(_NOT_SECRET):
        return False
    return any(word in name for word in _SECRET)


def _read_file(path: str) -> dict[str, str]:
    if not path:
        return {}
    try:
        with Path(path).open("rb") as file:
            if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
                _refuse(f"Others may read the options file {path}: chmod 600 it.")
            found = json.loads(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        _refuse(f"The options file {path} cannot be read: {error.strerror}.")
    except ValueError:
        _refuse(f"The options file {path} is not valid JSON.")
    if not isinstance(found, dict) or not all(
        isinstance(value, str) for value in found.values()
    ):
        _refuse(f"The options file {path} is not a JSON object of strings.")
    return found


def _read_certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        _refuse(f"The root certificate {path} cannot be read: {error.strerror}.")


def _refuse(what: str) -> NoReturn:
    raise BadRequest(Reason.INVALID, what=what)

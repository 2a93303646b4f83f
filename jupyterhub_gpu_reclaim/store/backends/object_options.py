"""Options of an object store, its address and login, checked before they are used.

A login comes from the environment, from the machine (instance metadata, workload
identity) or from a file that only its owner can read; never from the URL, the command
line or the agent's configuration, which get into process lists and logs.
"""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from obstore.store import from_url

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.object_errors import answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ObjectStore

    from jupyterhub_gpu_reclaim.store.backend import Spec

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


def check(url: str, options: Mapping[str, str]) -> None:
    """Refuse an address that makes no sense, and a secret among the options.

    The address is ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
    ``az://container/prefix``. Options are obstore's (``endpoint``, ``region``, …), or
    ``root_certificate`` (path of a PEM file) and ``proxy_url``.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        _refuse(f"A store is a whole path or begins with one of {', '.join(SCHEMES)}.")
    if parts.username or parts.password or parts.query or parts.fragment:
        _refuse(
            "A store's address is scheme://bucket/prefix; a login is not part of it."
        )
    if not parts.netloc:
        _refuse("A store's address names a bucket: scheme://bucket/prefix.")
    for name in options:
        word = name.lower()
        if any(map(word.__contains__, _SECRET)) and not word.endswith(_NOT_SECRET):
            _refuse(
                f"The option {name} is a secret: put it into the options file or"
                " the environment."
            )


def make_store(spec: Spec, retries: Mapping[str, Any]) -> ObjectStore:
    """Make obstore's ``ObjectStore``; connects to nothing."""
    config = {**spec["options"], **read_options(spec["options_file"])}
    client: dict[str, Any] = {"timeout": _REQUEST, "connect_timeout": _CONNECT}
    client |= {name: config.pop(name) for name in _CLIENT if name in config}
    if path := client.get("root_certificate"):
        try:
            client["root_certificate"] = Path(path).read_bytes()
        except OSError as error:
            _refuse(f"The root certificate {path} cannot be read: {error.strerror}.")
    if urlsplit(config.get("endpoint", "")).hostname in _LOOPBACK:
        client["allow_http"] = True
    retry: Any = {**retries, "retry_timeout": timedelta(seconds=spec["patience"])}
    given: Any = {"config": config, "client_options": client}
    with answers("the store's options"):
        return from_url(spec["url"], retry_config=retry, **given)


def read_options(path: str) -> dict[str, str]:
    """More options, a JSON object of mode 0600; BadRequest: bad, or open to others."""
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


def _refuse(what: str) -> NoReturn:
    raise BadRequest(Reason.INVALID, what=what)

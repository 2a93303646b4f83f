"""``agents secrets``: the shared secrets of a cluster's agents and its Hub.

Token, certificate and master key are generated, and printed; or, with ``--make``, the
pod that this runs in puts those into the cluster that are missing. That is the chart's
hook: its secrets are in no values and in no release of Helm's, and a second run changes
nothing. An existing Secret is used as it is; the Hub's gets its token and authority.

The master key and the id of its store are immutable: kubectl refuses other ones, which
could not open what the first ones have locked.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.cli.output import print_json, say
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME

if TYPE_CHECKING:
    import argparse

Files = dict[str, bytes]
#: Where the kubelet puts a pod's account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TEN_YEARS = timedelta(days=3650)
_LIMIT = 30.0


@dataclass(frozen=True)
class Wanted:
    """Names of the Secrets; one with an empty name is not made."""

    namespace: str = "gpu-reclaim"
    hub_namespace: str = "jupyterhub"
    token: str = "gpu-reclaim-agent-token"  # noqa: S105 - a Secret's name
    tls: str = "gpu-reclaim-agent-tls"
    master_keys: str = "gpu-reclaim-master-keys"
    access: str = "gpu-reclaim-agent-access"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--make",
        action="store_true",
        help="make those that are missing, as the account of the pod that this runs in",
    )
    for name, what in (
        ("namespace", "namespace of the agents"),
        ("hub_namespace", "namespace of the Hub"),
        ("token", "Secret with the agents' token"),
        ("tls", "Secret with the agents' certificate"),
        ("master_keys", "Secret with the master key; empty: none"),
        ("access", "Secret of the Hub"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="NAME",
            default=getattr(Wanted, name),
            help=f"{what} (default: %(default)s)",
        )


def run(args: argparse.Namespace) -> int:
    names = vars(args)
    wanted = Wanted(**{name: names[name] for name in Wanted.__dataclass_fields__})
    if args.make:
        asyncio.run(_make(_api_server(), wanted))
    else:
        print_json({"apiVersion": "v1", "kind": "List", "items": new(wanted)})
    return 0


def new(wanted: Wanted) -> list[dict[str, Any]]:
    token, tls = _token(), _tls()
    made = [
        _secret(wanted.namespace, wanted.token, token),
        _secret(wanted.namespace, wanted.tls, tls, kind="kubernetes.io/tls"),
        _secret(wanted.hub_namespace, wanted.access, _access(token, tls)),
    ]
    if wanted.master_keys:
        made.append(_master_keys(wanted))
    return made


async def make_missing(api: Connection, wanted: Wanted) -> None:
    """Make those that are missing; existing ones stay as they are.

    Raises:
        Unreachable: the API server does not answer, or forbids it.
    """
    where = wanted.namespace
    if wanted.master_keys:
        await _made(api, _master_keys(wanted))
    token = await _made(api, _secret(where, wanted.token, _token()))
    pair = _secret(where, wanted.tls, _tls(), kind="kubernetes.io/tls")
    tls = await _made(api, pair)
    access = _access(token, tls)
    theirs = _secret(wanted.hub_namespace, wanted.access, access)
    if await _made(api, theirs) != access:
        # of a token or a certificate that somebody has replaced
        path = f"{_path(theirs)}/{wanted.access}"
        await _asked(api, "PUT", path, theirs)
        say(f"The Secret {wanted.access} has the token and the authority of now.")


# --- parts ---------------------------------------------------------------------------


async def _make(api: Connection, wanted: Wanted) -> None:
    try:
        await make_missing(api, wanted)
    finally:
        api.close()


def _api_server() -> Connection:
    """With the account of this pod; Refused: this is not a pod, or it has none."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host or not ACCOUNT.is_dir():
        what = "--make is for a pod with an account: leave it out to print the Secrets."
        raise Refused(Reason.SETTING_INVALID, what=what)
    host = f"[{host}]" if ":" in host else host
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = (ACCOUNT / "token").read_text().strip()
    return Connection(
        f"https://{host}:{port}",
        lambda: {"Authorization": f"Bearer {token}"},
        Reason.CLUSTER_UNREACHABLE,
        ca_file=str(ACCOUNT / "ca.crt"),
    )


async def _made(api: Connection, secret: dict[str, Any]) -> Files:
    name, where = secret["metadata"]["name"], secret["metadata"]["namespace"]
    found = await _asked(api, "GET", f"{_path(secret)}/{name}")
    if found is None:
        found = await _asked(api, "POST", _path(secret), secret)
        say(f"The Secret {name} has been made in {where}.")
    else:
        say(f"The Secret {name} is in {where} already.")
    data = (found or {}).get("data") or {}
    return {file: base64.b64decode(text) for file, text in data.items()}


async def _asked(
    api: Connection, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    # None: it does not exist.
    more: dict[str, Any] = {}
    if body is not None:
        more = {
            "body": json.dumps(body).encode(),
            "headers": {"Content-Type": "application/json"},
        }
    answer = await api.ask(method, path, limit=_LIMIT, **more)
    if answer.status == 404 and method == "GET":
        return None
    if answer.status >= 400:
        verb = {"GET": "get", "POST": "create", "PUT": "update"}[method]
        resource = f"secrets ({answer.status}, {path})"
        raise Unreachable(Reason.CLUSTER_FORBIDS, verb=verb, resource=resource)
    return dict(json.loads(answer.body))


def _path(secret: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{secret['metadata']['namespace']}/secrets"


def _secret(
    namespace: str, name: str, files: Files, *, kind: str = "Opaque"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": kind,
        "data": {each: base64.b64encode(files[each]).decode() for each in files},
    }


def _token() -> Files:
    return {"token": secrets.token_hex(32).encode()}


def _master_keys(wanted: Wanted) -> dict[str, Any]:
    from jupyterhub_gpu_reclaim.store.format.identity import new_id  # noqa: PLC0415
    from jupyterhub_gpu_reclaim.store.format.keys import STORE_ID  # noqa: PLC0415

    files = {
        datetime.now(UTC).date().isoformat(): secrets.token_bytes(32),
        STORE_ID: new_id().encode(),
    }
    made = _secret(wanted.namespace, wanted.master_keys, files)
    return {**made, "immutable": True}


def _access(token: Files, tls: Files) -> Files:
    # Without an authority, as of another's Secret, the leaf.
    authority = tls.get("ca.crt") or tls.get("tls.crt", b"")
    return {"token": token.get("token", b""), "ca.crt": authority}


def _tls() -> Files:
    """A certificate of the agents, which is its own authority."""
    from cryptography import x509  # noqa: PLC0415 - of the agent's packages
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AGENT_NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _TEN_YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(AGENT_NAME)]), False)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    return {
        "ca.crt": certificate,
        "tls.crt": certificate,
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }

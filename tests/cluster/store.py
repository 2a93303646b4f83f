"""An object store in the cluster, for tests: moto's S3 server, behind TLS."""

import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PORT = 5000
BUCKET = "sessions"
LOGIN = {"access_key_id": "AKIAOFATEST", "secret_access_key": "a-very-secret-key"}
#: Run in the store's own container, once it listens.
MAKE_BUCKET = f"""
import boto3
boto3.client(
    "s3", endpoint_url="https://127.0.0.1:{PORT}", region_name="us-east-1",
    aws_access_key_id="{LOGIN["access_key_id"]}",
    aws_secret_access_key="{LOGIN["secret_access_key"]}", verify=False,
).create_bucket(Bucket="{BUCKET}")
"""


def options(endpoint: str) -> dict[str, str]:
    authority = "/etc/gpu-reclaim/store/ca.crt"
    region = {"region": "us-east-1", "root_certificate": authority}
    return {"endpoint": endpoint, **region, **LOGIN}


def certificate(host: str) -> tuple[bytes, bytes, bytes]:
    """An authority's certificate, the server's, and the server's key (PEM)."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed("store's authority", authority_key, authority_key, "")
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _signed("store", key, authority_key, host, authority.subject)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return authority.public_bytes(pem), leaf.public_bytes(pem), private


def _signed(name: str, key: Any, signer: Any, host: str, issuer: Any = None) -> Any:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + 7 * day)
        .add_extension(x509.BasicConstraints(not host, None), critical=True)
    )
    if host:
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())


def objects(namespace: str, image: str) -> list[dict[str, Any]]:
    labels = {"app": "store"}
    where = {"name": "store", "namespace": namespace}
    command = ["moto_server", "--host=0.0.0.0", f"--port={PORT}"]
    command += ["--ssl-cert=/tls/tls.crt", "--ssl-key=/tls/tls.key"]
    container = {
        "name": "store",
        "image": image,
        "command": command,
        # "store.<namespace>.svc" is no bucket called "store".
        "env": [{"name": "S3_IGNORE_SUBDOMAIN_BUCKETNAME", "value": "true"}],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "tls", "secret": {"secretName": "store"}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": where,
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": where,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]

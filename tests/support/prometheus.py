"""A real Prometheus that scrapes a stack as ``docs/how-to/operate.md`` says."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import yaml

from demo.admin import Admin
from demo.stack import Stack, free_port

SCRAPE_SECONDS = 1
RULES = Path(__file__).parents[2] / "etc/prometheus"


@contextlib.contextmanager
def scraping(stack: Stack, folder: Path, program: str) -> Iterator[str]:
    """Its address, while it scrapes each second."""
    (folder / "token").write_text(Admin(stack).headers["Authorization"].split()[1])
    scrape = {
        "job_name": "gpu-reclaim",
        "metrics_path": "/services/gpu-reclaim/metrics",
        "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [stack.url.partition("//")[2]]}],
    }
    settings = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(RULES / name) for name in ("rules.yml", "alerts.yml")],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with Path(folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def asked(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """What it answers to an expression of the dashboard, a rule or an alert."""
    values = {"$job": "gpu-reclaim", "$__rate_interval": "30s", "$__range": "1h"}
    plain = re.sub(r"\$\w+", lambda found: values[found[0]], expression)
    answer = requests.get(
        f"{prometheus}/api/v1/query", params={"query": plain}, timeout=20
    )
    assert answer.ok, (expression, answer.text)
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result

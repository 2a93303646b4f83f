"""A Hub whose parts speak TLS among themselves: sessions are refused, unharmed.

A server behind TLS, without a Hub, is refused in ``node/test_jupyter_server.py``.
"""

from collections.abc import Iterator

import pytest
import requests

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.hub import wait_until
from tests.support.stack import Stack


class StackWithinTls(Stack):
    """Whose Hub answers by TLS alone; people come through the proxy."""

    def _hub_answers(self) -> bool:
        hub = requests.get(f"{self.url}/hub/health", timeout=60)
        return hub.ok and requests.get(self.ready, timeout=60).ok

    @property
    def ready(self) -> str:
        return f"{self.url}/services/gpu-reclaim/readyz"


@pytest.fixture
def within_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tls")
    with StackWithinTls(
        folder,
        idle_after=0,
        sample_interval=2,
        server=light_server.COMMAND,
        internal_ssl=True,
    ) as stack:
        yield stack


@pytest.mark.long
def test_suspend_under_internal_ssl_is_refused_before_anything_is_touched(
    within_tls: Stack,
) -> None:
    ada = User(within_tls.url, "ada", within_tls.password)
    ada.login()
    ada.start_server()
    kernel = ada.server().start_kernel()
    kernel.connect()
    kernel.run("x = 42")
    admin = Admin(within_tls)
    [tree] = within_tls.trees()
    admin.call("POST", "sessions/ada/-/suspend")
    failure = wait_until(lambda: admin.session("ada")["failure"], 60)

    assert failure["code"] == "server_tls"
    assert admin.session("ada")["phase"] == "running"
    assert within_tls.agent("GET", "/v1/checkpoints") == []
    [after] = within_tls.trees()
    assert (after["incarnation"], after["state"]) == (tree["incarnation"], "running")
    assert kernel.run("x").result == "42"
    kernel.close()

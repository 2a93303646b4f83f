"""Odd addresses and names without a login; what is asked must never be our fault."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from tests.service.conftest import service
from tests.support.forms import Browser

__all__ = ["service"]

ODD = [
    "%00", "x%00.js", "%ff", "%c0%80", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/x",
    "a" * 5000, "%0d%0aX: y", "live.js%00", "live.js/", "admin", "%F0%9F%92%A9", "~",
    "{user}", "-", "--/-", "%25", "%E2%80%AE",
]  # fmt: skip
ROOTS = [
    "static/", "", "api/", "sessions/", "sessions/ada/", "api/sessions/",
    "api/sessions/ada/", "api/spawner/", "api/spawner/progress/a/", "api/users/",
    "all/", "log?user=", "log?before=", "oauth_callback?state=", "oauth_callback?code=",
    "api/events?user=",
]  # fmt: skip


async def raw(service, method: str, path: str, more: str = "") -> int:
    """One request as it stands; no client mends its address."""
    port = int(service.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} /services/gpu-reclaim/{path} HTTP/1.1\r\nHost: x\r\n{more}"
    writer.write(head.encode() + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("root", ROOTS)
async def test_odd_address_without_a_login_is_no_fault_of_ours(service, root):
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE", "X"):
        for odd in ODD:
            status = await raw(service, method, root + odd)
            assert 200 <= status < 500 or (method == "X" and status == 405), (
                method, root, odd, status,
            )  # fmt: skip


@pytest.mark.parametrize(
    "head",
    [
        "Authorization: token \xff\r\n",
        "Authorization: token " + "x" * 9000 + "\r\n",
        "Cookie: service-gpu-reclaim=2|1:0|10:x|x\r\n",
        "Cookie: ;;=;service-gpu-reclaim\r\n",
        "X-GPU-Reclaim-Tab: 1.2.3.%zz/-\r\n",
        "X-XSRFToken: \xff\r\n",
        "Content-Type: multipart/form-data; boundary=\r\n",
        "Content-Encoding: gzip\r\n",
        "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
    ],
)
async def test_odd_header_without_a_login_is_no_fault_of_ours(service, head):
    for method in ("GET", "POST"):
        for path in ("", "api/sessions", "sessions/ada/-/delete", "static/live.js"):
            status = await raw(service, method, path, head)
            assert status < 500, (method, path)


class TestReusedName:
    """Ada was somebody else before; what she did stays hers."""

    @pytest.fixture
    def reused(self, service, monkeypatch):
        key = SessionKey("ada")
        service.control.put("ada")
        rows = [
            AuditLine(at=at, key=key, who="ada", what="suspend", sentence=message)
            for at, message in ((200.0, "mine"), (50.0, "of the former ada"))
        ]
        monkeypatch.setattr(service.control, "audit", lambda *_: rows)
        service.control.users_since["ada"] = 100.0
        return service

    PATHS = ("api/sessions/ada/-/history",)

    async def test_new_user_sees_their_own_history_alone(self, reused):
        for path in self.PATHS:
            text = (await reused.call(path)).body.decode()
            assert "mine" in text, path
            assert "former" not in text, path
        ada = Browser(reused, "token-ada")
        for path in ("log", "sessions/ada/-"):
            text = (await ada.get(path)).body.decode()
            assert "mine" in text, path
            assert "former" not in text, path
        assert "before=7" not in (await ada.get("log")).body.decode()

    async def test_manager_sees_all_of_it(self, reused):
        for path in self.PATHS:
            text = (await reused.call(path, "token-root")).body.decode()
            assert "former" in text, path

    async def test_order_about_a_session_is_compared_with_the_accounts_time(
        self, reused
    ):
        for token, compared in (("token-root", {}), ("token-ada", {"ada": 100.0})):
            path, body = "api/sessions/ada/-/keep", {"seconds": 60}
            assert (await reused.call(path, token, "POST", body)).code == 200
            made = reused.control.accounts_made
            assert {key.user: at for key, at in made.items()} == compared

    async def test_pass_of_the_former_users_session_is_void(self, reused):
        now = reused.context.clock.now()
        reused.control.users_since["ada"] = now - 60
        for started, status in ((now - 120, 401), (now - 30, 200)):
            key = tab_tokens.session_key(
                reused.context.spawner_token, SessionKey("ada"), "5e55", started
            )
            tab = tab_tokens.made({tab_tokens.VARIABLE: key}, now)
            answer = await reused.call(
                "api/sessions/ada/-", "", headers={tab_tokens.HEADER: tab}
            )
            assert answer.code == status

"""A session whose login the Hub has forgotten, let back in from the service's page.

That it is refused before is in ``hub/test_traps.py`` (T7), the order and its button in
``service``.
"""

import re

import pytest
import requests

from demo.admin import Admin
from demo.user import User
from tests.support.forms import VISIT
from tests.support.hub import wait_until
from tests.support.stack import Stack


def revoke(admin: Admin, user: str) -> None:
    """Delete the login of that user's server, as an administrator can."""
    hub = admin.user.hub
    tokens = hub("GET", f"users/{user}/tokens").json()["api_tokens"]
    [server] = [one for one in tokens if one["note"].startswith("Server at")]
    assert hub("DELETE", f"users/{user}/tokens/{server['id']}").ok


@pytest.mark.long
def test_session_with_a_forgotten_login_comes_back_after_the_button(
    stack: Stack, admin: Admin, user: User
) -> None:
    kernel = user.server().start_kernel()
    kernel.connect()
    kernel.run("x = 42")
    admin.suspend(user.name)
    revoke(admin, user.name)
    user.hub("POST", f"users/{user.name}/server", json={})
    failure = wait_until(lambda: admin.session(user.name)["failure"], 60)
    assert failure["code"] == "token_revoked"

    page = f"{stack.url}/services/gpu-reclaim/sessions/{user.name}/-"
    shown = admin.user.http.get(page, headers=VISIT, timeout=30)
    assert shown.status_code == 200
    assert "Restore its login" in shown.text
    proof = re.search(r'data-xsrf="([^"]+)"', shown.text)
    assert proof is not None
    sent = {"_xsrf": proof[1], "page": "one"}
    # without a cookie, as from the page's sandbox
    pressed = requests.post(
        f"{page}/renew-login", data=sent, timeout=30, allow_redirects=False
    )
    assert pressed.status_code == 303, pressed.text

    user.start_server()
    kernel.connect()
    assert kernel.run("x").result == "42"
    kernel.close()

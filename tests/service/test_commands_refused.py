"""What goes wrong before or at the service: a sentence, its code, an exit code."""

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.cli import sessions
from tests.support.served import served


async def test_session_that_is_not_there_is_a_sentence_with_a_code(command):
    code, out, err = await command("why", "nobody")
    assert (code, out) == (1, "")
    assert err == (
        "Error: There is no session nobody/. (unknown_session)\n"
        "  'jupyterhub-gpu-reclaim sessions' lists all that exist.\n"
    )


async def test_wrong_token_is_told(command, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "wrong")
    code, _, err = await command("sessions")
    assert code == 1
    assert err.startswith("Error: The Hub does not know this token: it has expired")
    assert "(token_unknown)" in err


@pytest.mark.parametrize("token", ["", " ", "two words", "t\u00f6ken"])
async def test_token_that_is_none_is_not_sent(command, monkeypatch, token):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    code, _, err = await command("sessions")
    assert code == 2
    assert "oken" in err


@pytest.mark.parametrize("what", ["missing", "empty", "folder"])
async def test_token_file_that_cannot_be_used_is_named(command, tmp_path, what):
    file = tmp_path / what
    if what == "folder":
        file.mkdir()
    elif what == "empty":
        file.touch(mode=0o600)
    code, _, err = await command("sessions", f"--token-file={file}")
    assert code == 2
    assert str(file) in err


@pytest.mark.parametrize(
    "url",
    [
        "hub.example.org",
        "ftp://hub",
        "http://",
        "http://u:p@hub",
        "http://[::1",
        "http://h:x",
    ],
)
async def test_address_that_is_none_is_told(command, url):
    code, _, err = await command("sessions", f"--url={url}")
    assert code == 2
    assert "is no address of a Hub" in err


async def test_service_that_does_not_answer_has_an_exit_code_of_its_own(command):
    code, _, err = await command("sessions", "--url=http://127.0.0.1:1/hub")
    assert code == sessions.NO_SERVICE
    assert "http://127.0.0.1:1/hub/services/gpu-reclaim" in err
    assert "(api_unreachable)" in err


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (301, "with https"),
        (404, "something else is there (status 404)"),
        (502, "is away"),
    ],
)
async def test_answer_of_a_proxy_before_it_is_told_apart(command, status, why):
    proxy = Application([(".*", ProxyThatSays, {"status": status})])
    async with served(proxy) as port:
        code, _, err = await command("sessions", f"--url=http://127.0.0.1:{port}")
    assert code == sessions.NO_SERVICE
    assert why in err


class ProxyThatSays(RequestHandler):
    """What stands before a Hub, with words of its own."""

    def initialize(self, status: int) -> None:
        self.status = status

    def get(self) -> None:
        self.set_status(self.status)
        self.finish("<html>Not us.</html>")


async def test_certificates_that_are_none_are_named(command, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    code, _, err = await command("sessions", f"--ca-file={file}")
    assert code == 2
    assert str(file) in err

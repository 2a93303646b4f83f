"""A journal, and receivers that are real: a web server and a mail server."""

import asyncio
import ssl

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
from tests.support import certificates


@pytest.fixture
def journal(tmp_path):
    """A journal, and ``note(what, …)``, which adds a line to its audit."""
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")

    def note(what, at=1000.0, user="ada", server="", **more):
        key = SessionKey(user, server)
        row = journal.session(key) or SessionRow(key=key)
        journal.save(
            row, AuditLine(at=at, key=key, who="gpu-reclaim", what=what, **more)
        )

    journal.note = note
    yield journal
    journal.close()


class _Hook(RequestHandler):
    async def post(self) -> None:
        receiver = self.settings["receiver"]
        receiver.requests.append(
            (self.request.uri, self.request.headers, self.request.body)
        )
        if receiver.silent:
            await receiver.woken.wait()
        status = receiver.statuses.pop(0) if receiver.statuses else 204
        if status == 302:
            self.redirect("/elsewhere")
            return
        self.set_status(status)

    get = post


class Receiver:
    """A web server that notes what it gets, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list = []
        self.statuses: list[int] = []
        self.silent = False
        self.woken = asyncio.Event()
        sockets = bind_sockets(0, "127.0.0.1")
        self.server = HTTPServer(Application([(".*", _Hook)], receiver=self))
        self.server.add_sockets(sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hook?key=1"


@pytest.fixture
async def receiver():
    one = Receiver()
    yield one
    one.woken.set()
    one.server.stop()
    await one.server.close_all_connections()


class Mailbox:
    """A mail server that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list = []
        self.logins: list = []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.messages.append(envelope)
        return "250 taken"

    def login(self, server, session, envelope, mechanism, data):
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"s3cret", handled=False)


@pytest.fixture
async def serve_mail(certificate):
    """Starts a mail server; its mailbox and its port."""
    servers = []

    async def serve(tls="none"):
        mailbox = Mailbox()
        options = {
            "authenticator": mailbox.login,
            "auth_require_tls": False,
            "auth_exclude_mechanism": ["LOGIN"],
        }
        if tls == "starttls":
            options |= {"tls_context": certificate, "require_starttls": True}
        server = await asyncio.get_running_loop().create_server(
            lambda: SMTP(mailbox, enable_SMTPUTF8=True, **options),
            "127.0.0.1",
            0,
            ssl=certificate if tls == "tls" else None,
        )
        servers.append(server)
        return mailbox, server.sockets[0].getsockname()[1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """A server's TLS for 127.0.0.1, which this program trusts for the test."""
    file = certificates.certificate(tmp_path, "mail", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context

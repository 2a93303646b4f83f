"""A user at a browser, played over the real proxy: log in, open a lab, run cells.

Used by ``demo/check.py`` and by the end-to-end tests. It speaks what a browser
speaks (cookies, XSRF, redirects, websockets) and, as a browser's script would,
follows the page of a suspended session to where its session comes back.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from html import unescape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urljoin, urlparse

import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

if TYPE_CHECKING:
    from types import TracebackType

    from demo.stack import Stack


class UserError(RuntimeError):
    """What this user wanted did not happen; the text says what they saw."""


@dataclass
class Output:
    """What running a cell gave."""

    text: str = ""
    result: str = ""
    error: str = ""
    events: list[tuple[float, str]] = field(default_factory=list)


def trail(seen: list[str]) -> str:
    """Pages in their order, in a line: what came again and again stands once."""
    counted = [(page, len([*same])) for page, same in groupby(seen)]
    return ", then ".join(
        page + (f" ({many} times)" if many > 1 else "") for page, many in counted[-8:]
    )


class User:
    """One person with one browser profile."""

    def __init__(self, base: str, name: str, password: str) -> None:
        self.base = base.rstrip("/")
        self.name = name
        self.password = password
        self.http = requests.Session()
        # what a browser says of the pages that it opens
        self.http.headers["Sec-Fetch-Mode"] = "navigate"
        self.http.headers["Sec-Fetch-Dest"] = "document"
        self.logins = 0

    @classmethod
    def arrived(cls, stack: Stack, name: str) -> Self:
        """Somebody who is logged in, and whose server runs."""
        user = cls(stack.url, name, stack.password)
        user.login()
        user.start_server()
        return user

    # --- pages ---------------------------------------------------------------------

    def login(self) -> None:
        """Fill in the Hub's login form."""
        page = self.http.get(f"{self.base}/hub/login", timeout=30)
        xsrf = self._xsrf()
        page = self.http.post(
            f"{self.base}/hub/login",
            params={"_xsrf": xsrf, "next": f"{urlparse(self.base).path}/hub/home"},
            data={
                "username": self.name,
                "password": self.password,
                "_xsrf": xsrf,
            },
            timeout=30,
        )
        if "/hub/login" in page.url or page.status_code >= 400:
            raise UserError(f"login: {page.status_code} at {page.url}")
        self.logins += 1

    def _xsrf(self) -> str:
        path = f"{urlparse(self.base).path}/hub/"
        return self.http.cookies.get("_xsrf", path=path) or ""

    def visit(self, path: str, *, seconds: float = 120) -> requests.Response:
        """Open a page and stay until it is the page that was asked for.

        Follows what a browser's script would: the page of a suspended session
        leads to the spawn page, the pending page reloads itself.
        """
        wanted = urljoin(self.base + "/", path.lstrip("/"))
        url, until, seen = wanted, time.monotonic() + seconds, []
        while time.monotonic() < until:
            page = self.http.get(url, timeout=60)
            here = urlparse(page.url).path
            seen.append(f"{page.status_code} {here}")
            if "/hub/login" in here:
                raise UserError(f"a new login was asked for: {trail(seen)}")
            if page.status_code == 200 and "/hub/" not in here:
                return page
            refused = re.search(r'gpu-reclaim-reason" data-code="([^"]+)"', page.text)
            if refused:
                raise UserError(f"{wanted} was not started: {refused[1]}")
            url = self._where_the_script_goes(page, wanted)
            time.sleep(0.1)
        raise UserError(f"{wanted} did not open: {trail(seen)}")

    def _where_the_script_goes(self, page: requests.Response, wanted: str) -> str:
        resume = re.search(r'data-gpu-reclaim-resume="([^"]+)"', page.text)
        if resume:
            return urljoin(page.url, unescape(resume.group(1)))
        pending = "spawn-pending" in page.url or page.status_code == 503
        return page.url if pending and "/hub/" in page.url else wanted

    # --- the Hub's API -------------------------------------------------------------

    def hub(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the Hub's API as the page's scripts do."""
        xsrf = self._xsrf()
        kwargs.setdefault("timeout", 60)
        return self.http.request(
            method,
            f"{self.base}/hub/api/{path.lstrip('/')}",
            headers={
                "X-XSRFToken": xsrf,
                "Referer": f"{self.base}/hub/home",
                "Sec-Fetch-Mode": "cors",
                "Sec-Fetch-Dest": "empty",
            },
            **kwargs,
        )

    def start_server(self, server: str = "", *, seconds: float = 120) -> None:
        """Start a server and wait until it answers."""
        where = f"servers/{quote(server)}" if server else "server"
        answer = self.hub("POST", f"users/{quote(self.name)}/{where}")
        if (
            answer.status_code not in {201, 202}
            and "already running" not in answer.text
        ):
            raise UserError(f"start: {answer.status_code} {answer.text}")
        self.visit(
            f"/user/{quote(self.name)}/{quote(server)}".rstrip("/") + "/lab",
            seconds=seconds,
        )

    # --- the Jupyter server's API --------------------------------------------------

    def server(self, server: str = "") -> Server:
        """The user's server, to run kernels and terminals in."""
        return Server(self, server)


class Server:
    """A user's Jupyter server as its own pages use it."""

    def __init__(self, user: User, name: str = "") -> None:
        self.user = user
        tail = f"{quote(user.name)}/{quote(name)}".rstrip("/")
        self.prefix = f"/user/{tail}/"
        #: As the browser sees it: its cookies are kept by path.
        self.path = f"{urlparse(user.base).path}{self.prefix}"

    def api(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the Jupyter server's REST API with this browser's cookies."""
        xsrf = self.user.http.cookies.get("_xsrf", path=self.path) or ""
        kwargs.setdefault("timeout", 60)
        return self.user.http.request(
            method,
            f"{self.user.base}{self.prefix}api/{path}",
            headers={
                "X-XSRFToken": xsrf,
                "Referer": f"{self.user.base}{self.prefix}lab",
            },
            **kwargs,
        )

    def json(self, method: str, path: str, **kwargs: Any) -> Any:
        """Call the API and insist on a good answer."""
        answer = self.api(method, path, **kwargs)
        if not answer.ok:
            raise UserError(
                f"{method} {path}: {answer.status_code} {answer.text[:300]}"
            )
        return answer.json() if answer.content else None

    def start_kernel(self) -> Kernel:
        """Start a Python kernel."""
        made = self.json("POST", "kernels", json={"name": "python3"})
        return Kernel(self, made["id"])

    def kernel(self, kernel_id: str) -> Kernel:
        """A kernel that runs already."""
        return Kernel(self, kernel_id)

    def start_terminal(self) -> str:
        """Start a terminal; returns its name."""
        return str(self.json("POST", "terminals", json={})["name"])

    def websocket(self, path: str) -> ClientConnection:
        """Open a websocket of this server with the browser's cookies."""
        url = f"{self.user.base}{self.prefix}{path}".replace("http", "ws", 1)
        cookies = self.user.http.cookies
        jar = {c.name: c.value for c in cookies if self.path.startswith(c.path)}
        header = "; ".join(f"{name}={value}" for name, value in jar.items())
        return connect(
            url,
            additional_headers={"Cookie": header},
            origin=Origin(self.user.base),
            open_timeout=30,
            max_size=None,
            max_queue=None,  # a browser reads what comes
        )


class Kernel:
    """A kernel, through a websocket as a notebook has one."""

    def __init__(self, server: Server, kernel_id: str) -> None:
        self.server = server
        self.id = kernel_id
        self.session = uuid.uuid4().hex
        self.ws: ClientConnection | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Open the websocket (again, under the same session id)."""
        self.close()
        self.ws = self._open.enter_context(
            self.server.websocket(
                f"api/kernels/{self.id}/channels?session_id={self.session}"
            )
        )

    def close(self) -> None:
        """Close the websocket."""
        self.ws = None
        self._open.close()

    def send(self, code: str, *, asks: bool = False) -> str:
        """Send a cell, which may ask for input; returns the message's id."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": asks,
            "stop_on_error": True,
        }
        return self._send("shell", "execute_request", content)

    def answer(self, value: str) -> None:
        """Send what somebody has typed at a cell's question."""
        self._send("stdin", "input_reply", {"value": value})

    def wait_for_question(self, *, seconds: float = 60) -> str:
        """Read until a cell asks for input; returns its prompt."""
        assert self.ws is not None
        until = time.monotonic() + seconds
        while True:
            got = json.loads(self.ws.recv(timeout=max(0.0, until - time.monotonic())))
            if got["header"]["msg_type"] == "input_request":
                return str(got["content"]["prompt"])

    def _send(self, channel: str, kind: str, content: dict[str, Any]) -> str:
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "username": self.server.user.name,
            "session": self.session,
            "msg_type": kind,
            "version": "5.3",
        }
        assert self.ws is not None
        self.ws.send(
            json.dumps(
                {
                    "header": header,
                    "parent_header": {},
                    "metadata": {},
                    "content": content,
                    "channel": channel,
                    "buffers": [],
                }
            )
        )
        return message

    def collect(self, message: str, *, seconds: float = 60) -> Output:
        """Read until that cell has ended and its reply is there."""
        assert self.ws is not None
        out, until = Output(), time.monotonic() + seconds
        ended: set[str] = set()
        while ended != {"idle", "reply"}:
            left = until - time.monotonic()
            if left <= 0:
                raise UserError(f"no end of the cell after {seconds} s: {out}")
            got = json.loads(self.ws.recv(timeout=left))
            if got.get("parent_header", {}).get("msg_id") != message:
                continue
            content, kind = got["content"], got["header"]["msg_type"]
            if kind == "stream":
                out.text += content["text"]
                out.events.append((time.time(), content["text"]))
            elif kind == "execute_result":
                out.result = content["data"]["text/plain"]
            elif kind == "error":
                out.error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                ended.add("idle")
            elif kind == "execute_reply":
                ended.add("reply")
        return out

    def run(self, code: str, *, seconds: float = 60) -> Output:
        """Run a cell to its end.

        Raises:
            UserError: the cell raised, or did not end in time.
        """
        out = self.collect(self.send(code), seconds=seconds)
        if out.error:
            raise UserError(out.error)
        return out


def read_terminal(ws: ClientConnection, *, until: str, seconds: float = 20) -> str:
    """Read a terminal's websocket until a text has shown up."""
    seen, end = "", time.monotonic() + seconds
    while until not in seen:
        left = end - time.monotonic()
        if left <= 0:
            raise UserError(f"the terminal never showed {until!r}: {seen[-500:]!r}")
        try:
            kind, *rest = json.loads(ws.recv(timeout=left))
        except ConnectionClosed as error:
            raise UserError(
                f"the terminal closed without {until!r}: {seen[-500:]!r}"
            ) from error
        if kind == "stdout":
            seen += rest[0]
    return seen

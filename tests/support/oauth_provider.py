"""An OAuth 2 provider that knows by a cookie who asks, with numbered tokens."""

import itertools
import json
import threading
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

#: The cookie of a browser at the provider's page: who has signed in there.
PERSON = "person"


class OAuthProvider:
    """It serves on a port of 127.0.0.1 until it is closed."""

    def __init__(self) -> None:
        self.tokens: set[str] = set()  #: access tokens that are good
        self.refreshes = True  #: whether a refresh token is good for another
        self._numbers = itertools.count(1)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                if asked.path == "/authorize":
                    words = {k: v[0] for k, v in parse_qs(asked.query).items()}
                    person = SimpleCookie(self.headers["Cookie"])[PERSON].value
                    back = urlencode({"code": person, "state": words["state"]})
                    self.send_response(302)
                    self.send_header("Location", f"{words['redirect_uri']}?{back}")
                    self.end_headers()
                else:
                    token = self.headers["Authorization"].removeprefix("Bearer ")
                    if token in provider.tokens:
                        self.tell({"username": token.rsplit("-", 1)[0]})
                    else:
                        self.send_error(401)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                words = {k: v[0] for k, v in parse_qs(body).items()}
                if "code" in words or provider.refreshes:
                    person = words.get("code") or words["refresh_token"]
                    self.tell(provider.token(person))
                else:
                    self.send_error(400)

            def tell(self, answer: dict[str, Any]) -> None:
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def token(self, person: str) -> dict[str, Any]:
        """A new access token; who brings the refresh token gets the next."""
        access = f"{person}-{next(self._numbers)}"
        self.tokens.add(access)
        return {
            "access_token": access,
            "refresh_token": person,
            "token_type": "Bearer",
            "expires_in": 3600,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

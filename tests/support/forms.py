"""The service's pages as a person without scripts has them: cookies and forms."""

import re
from html.parser import HTMLParser
from urllib.parse import urlencode

from tornado.web import create_signed_value

#: What a browser says of a page that it opens in a tab.
VISIT = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


class Browser:
    """Cookies, pages and forms; what a person without scripts has."""

    def __init__(self, service, token: str) -> None:
        self.service = service
        secret = service.app.settings["cookie_secret"]
        name = "service-gpu-reclaim"
        self.cookies = {}
        if token:
            signed = create_signed_value(secret, name, token)
            self.cookies[name] = signed.decode()

    async def get(self, path: str = "", **headers: str):
        return await self._call(path, "GET", None, {**VISIT, **headers})

    async def part(self, path: str):
        """What a script of a page asks for: with the page's proof, without a cookie."""
        headers = {"X-XSRFToken": await self.xsrf(), "Sec-Fetch-Mode": "cors"}
        headers["Origin"] = "null"
        return await self.service.call(path, "", headers=headers)

    async def post(self, path: str, accept: str = "text/html", **fields: str):
        kind = "application/x-www-form-urlencoded"
        headers = {"Content-Type": kind, "Accept": accept}
        return await self._call(path, "POST", urlencode(fields), headers)

    async def press(self, order: str, **fields: str):
        """A button for an order, of a page with its proof."""
        return await self.post(
            f"sessions/ada/-/{order}", _xsrf=await self.xsrf(), **fields
        )

    async def text(self, path: str = "") -> str:
        """A page, with its words as a line shows them."""
        return re.sub(r"\s+", " ", (await self.get(path)).body.decode())

    async def xsrf(self) -> str:
        page = (await self.get("mine")).body.decode()
        return re.search(r'data-xsrf="([^"]+)"', page)[1]

    async def _call(self, path, method, body, headers):
        headers["Cookie"] = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
        response = await self.service.call(
            path, "", method, body=body or b"", headers=headers
        )
        for cookie in response.headers.get_list("Set-Cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return response


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.seen if name == tag]

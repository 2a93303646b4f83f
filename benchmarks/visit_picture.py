"""A picture of one visit: from the click on a suspended session to a cell's output.

    sudo .venv/bin/python -m benchmarks.visit_picture [--to FILE]

The same Hub, JupyterLab and browser as in ``benchmarks/notebook_return.py``. The times
are those of one return, after one that filled the browser's cache: what the browser
asked for and was answered, what the service told of the session, and the agent's steps.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from playwright.sync_api import sync_playwright

from benchmarks.notebook_return import IDLE, NAME, PATH, PATIENCE, SETTINGS, Scene
from demo.admin import Admin
from demo.stack import Stack
from tests.browser.conftest import edit_cell, run_cell
from tests.support import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

ROOT = Path(__file__).parents[1]
OUTPUT = "it is back"
WIDTH, ROW, LEFT = 960, 22, 370
COLOURS = {"browser": "#4c78a8", "session": "#f58518", "agent": "#54a24b"}


class Span(NamedTuple):
    """What somebody did, in seconds since the epoch; a moment has no length."""

    who: str
    what: str
    begun: float
    ended: float


class Listener(threading.Thread):
    """Hears what the service tells of the session, and when."""

    def __init__(self, admin: Admin) -> None:
        super().__init__(daemon=True)
        self.spans: list[Span] = []
        self._phase, self._since = "", 0.0
        self._steps: dict[str, float] = {}
        self._answer = admin.user.http.get(
            f"{admin.stack.service_url}/api/events",
            params={"user": NAME},
            headers=admin.headers,
            stream=True,
            timeout=PATIENCE,
        )

    def run(self) -> None:
        """Read until the stream is closed."""
        with contextlib.suppress(requests.RequestException):
            for line in self._answer.iter_lines():
                if line.startswith(b"data: {"):
                    self._hear(json.loads(line[6:]), time.time())

    def close(self) -> None:
        """Hear no more."""
        self._answer.raw.shutdown()
        self.join(10)

    def _hear(self, view: dict[str, Any], now: float) -> None:
        if view["phase"] != self._phase:
            if self._phase == "resuming":
                self.spans.append(Span("session", self._phase, self._since, now))
            self._phase, self._since = view["phase"], now
            self._steps.clear()
        for step in view.get("steps", ()):
            name = step["step"]
            begun = self._steps.setdefault(name, now - step.get("seconds", 0.0))
            if self._phase == "resuming" and step["state"] == "done":
                took = step.get("seconds", 0.0)
                span = Span("agent", name, now - took if took else begun, now)
                if all((one.who, one.what) != span[:2] for one in self.spans):
                    self.spans.append(span)


class Visit:
    """One return, seen from the browser."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.spans: list[Span] = []
        page.on("response", self._answered)

    def make(self, url: str) -> None:
        """Click, wait for the notebook, and run its cell."""
        begun = time.time()
        self._page.goto(url, wait_until="commit")
        self._page.get_by_text(IDLE).wait_for()
        idle = time.time()
        edit_cell(self._page, 0, f"print('{OUTPUT[:5]}' + '{OUTPUT[5:]}')")
        ran = time.time()
        run_cell(self._page, 0)
        self._page.locator(".jp-OutputArea-output", has_text=OUTPUT).wait_for()
        self.spans += [
            Span("browser", "from the click to the kernel's name", begun, idle),
            Span("browser", "a cell is run, and has its output", ran, time.time()),
        ]

    def _answered(self, answer: Response) -> None:
        request, here = answer.request, self._page.main_frame
        if request.resource_type != "document" or request.frame != here:
            return
        timing = request.timing
        begun = timing["startTime"] / 1000
        path = "/" + request.url.split("/", 3)[3].split("?")[0]
        what = f"GET {path} → {answer.status}"
        ended = begun + max(timing["responseStart"], 0) / 1000
        self.spans.append(Span("browser", what, begun, ended))


def picture(spans: list[Span]) -> str:
    """Bars in the order in which they began, as an SVG."""
    spans = sorted(spans, key=lambda span: (span.begun, -span.ended))
    zero, end = spans[0].begun, max(span.ended for span in spans)
    scale = (WIDTH - LEFT - 70) / (end - zero)
    height = ROW * (len(spans) + 2)
    size = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    lines += [f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for second in range(int(end - zero) + 1):
        x = round(LEFT + second * scale)
        lines += [f'<path d="M{x} {ROW}V{height}" stroke="#ddd"/>']
        lines += [f'<text x="{x}" y="{ROW - 6}">{second} s</text>']
    for number, span in enumerate(spans):
        y, x = ROW * (number + 1) + 3, round(LEFT + (span.begun - zero) * scale)
        long = max(round((span.ended - span.begun) * scale), 2)
        label = html.escape(f"{span.who}: {span.what}")
        place = f'x="{x}" y="{y}" width="{long}" height="{ROW - 6}"'
        took = f"{span.ended - span.begun:.2f}"
        lines += [f'<text x="8" y="{y + 13}">{label}</text>']
        lines += [f'<rect {place} fill="{COLOURS[span.who]}"/>']
        lines += [f'<text x="{x + long + 4}" y="{y + 13}">{took}</text>']
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Make the visit, print its spans, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "docs/images/visit.svg")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="grv-") as own,
        Stack(Path(own), **SETTINGS) as stack,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=chromium.PATH, args=chromium.ARGUMENTS
        ) as browser,
    ):
        context = browser.new_context()
        scene, admin = Scene(stack, context), Admin(stack)
        for kind in (scene.cold, scene.resumed):
            kind()
        admin.suspend(NAME)
        listener = Listener(admin)
        listener.start()
        visit = Visit(context.new_page())
        visit.make(stack.url + PATH)
        listener.close()
        spans = visit.spans + listener.spans
    options.to.write_text(picture(spans))
    zero = min(span.begun for span in spans)
    for span in sorted(spans, key=lambda span: span.begun):
        begun, ended = span.begun - zero, span.ended - zero
        print(f"{begun:6.2f} {ended:6.2f}  {span.who}: {span.what}")


if __name__ == "__main__":
    main()

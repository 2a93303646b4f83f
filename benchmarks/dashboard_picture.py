"""A picture of the Grafana dashboard, over a real Prometheus and a Hub at work.

    sudo .venv/bin/python -m benchmarks.dashboard_picture [--minutes 8] [--to FILE]

Grafana itself is on no registry that we use; its components are. A page of
``scripts/dashboard`` (``npm ci && npm run build`` there, once) draws
``etc/grafana/dashboard.json`` with them, and this shows it in Chromium. Before that,
the demo's guests come, leave, are suspended and come back for so many minutes.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from demo import guests
from demo.admin import Admin
from demo.stack import Stack
from tests.support import chromium
from tests.support.prometheus import scraping

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build/dashboard"
SETTINGS = {"idle_after": 20, "warn_for": 3, "sample_interval": 1, "cool_down": 0}
AWAY_SECONDS = 30


def live(stack: Stack, minutes: float) -> None:
    """Let the guests come; one of them goes away and comes back again and again."""
    admin = Admin(stack)
    for name in guests.GUESTS:
        guests.visit(stack, name)
    admin.call("POST", "sessions/grace/-/keep", json={"seconds": 3600})
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        admin.wait("alan", phase="suspended", seconds=120)
        time.sleep(AWAY_SECONDS)
        admin.resume("alan")
        admin.wait("alan", phase="running")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def served(folder: Path) -> Iterator[str]:
    """The address of a server of these files."""
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def draw(prometheus: str, minutes: float, to: Path) -> None:
    """Show the page in a browser, and take its picture.

    Raises:
        RuntimeError: the page says that something is wrong.
    """
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.PATH, args=chromium.ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1456, "height": 3430})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for url in served(PAGE):
            page.goto(f"{url}/index.html?prometheus={prometheus}&minutes={minutes}")
            page.wait_for_function("document.title === 'drawn'")
            page.wait_for_timeout(3000)  # uPlot draws when its panel has a size
            page.screenshot(path=to)
        browser.close()
    if wrong:
        raise RuntimeError("; ".join(wrong))


def main() -> None:
    """Play for some minutes, and draw what Prometheus has seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--to", type=Path, default=Path("dashboard.png"))
    options = parser.parse_args()
    if not PAGE.is_dir():
        raise SystemExit("npm ci && npm run build in scripts/dashboard first")
    program = str(ROOT / ".cache/prometheus")
    with tempfile.TemporaryDirectory(prefix="grp-") as name:
        folder = Path(name)
        (folder / "prometheus").mkdir()
        with (
            Stack(folder / "stack", simulated_gpus=True, **SETTINGS) as stack,
            scraping(stack, folder / "prometheus", program) as prometheus,
        ):
            live(stack, options.minutes)
            draw(prometheus, options.minutes + 1, options.to)


if __name__ == "__main__":
    main()

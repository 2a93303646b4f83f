"""The managers' page with 3, 300 and 3,000 sessions, in Chromium.

    .venv/bin/python -m benchmarks.page [--pictures FOLDER]

The service runs over sessions in memory. First paint and the table's are counted
from the navigation on; frames are those of two seconds of scrolling through all rows.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright
from tornado.web import create_signed_value

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    Phase,
    SessionKey,
)
from tests.service.conftest import checkpoint, running
from tests.support import chromium

SIZES = (3, 300, 3000)
#: Width and colours.
WINDOWS = ((1280, "light"), (1280, "dark"), (360, "light"), (360, "dark"))
SCROLLS = """async () => {
  const box = document.querySelector("#sessions .tabulator-tableholder");
  const [frames, began] = [[], performance.now()];
  let last = began;
  while (last - began < 2000) {
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
    const part = Math.min(1, (now - began) / 2000);
    box.scrollTop = part * box.scrollHeight;
    window.scrollTo(0, part * document.documentElement.scrollHeight);
  }
  return frames.slice(1);
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def fill(control: Any, number: int) -> None:
    """Sessions of all kinds, each of a user of its own."""
    now = time.time()
    card = GpuSample(uuid="GPU-1", name="NVIDIA H100 80GB HBM3", memory=12 * 10**9)
    busy = Decision(reclaim=False, code="kernel_busy", message="Kernel a is busy.")
    lost = Failure(code="file_missing", message="The file data.bin is gone.")
    kinds: tuple[dict[str, Any], ...] = (
        {"phase": Phase.RUNNING, "verdict": busy, "gpus": [card]},
        {"phase": Phase.SUSPENDED, "checkpoint": "c1"},
        {"phase": Phase.SUSPENDED, "checkpoint": "c1", "failure": lost},
        {"phase": Phase.WARNED, "suspends_at": now + 60.0, "gpus": [card]},
    )
    for n in range(number):
        saved = checkpoint(SessionKey(f"user-{n:04}"), f"c{n}")
        control.put(f"user-{n:04}", **kinds[n % len(kinds)], last_suspend=saved)


async def measured(
    browser: Any, service: Any, width: int, colours: str, picture: Path | None
) -> str:
    """One row of the table."""
    context = await browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=colours
    )
    secret = service.app.settings["cookie_secret"]
    signed = create_signed_value(secret, "service-gpu-reclaim", "token-root").decode()
    cookie = {"name": "service-gpu-reclaim", "value": signed, "url": service.url}
    await context.add_cookies([cookie])
    page = await context.new_page()
    await page.goto(service.url + "all")
    await page.locator("#view:not([aria-busy]) .tabulator-row").first.wait_for()
    shown = await page.evaluate("performance.now()")
    paint = await page.evaluate(PAINT)
    devtools = await context.new_cdp_session(page)
    await devtools.send("HeapProfiler.collectGarbage")
    heap = (await devtools.send("Runtime.getHeapUsage"))["usedSize"]
    if picture is not None:
        await page.screenshot(path=picture, full_page=True)
    frames = await page.evaluate(SCROLLS)
    await context.close()
    rate = 1000 / statistics.median(frames)
    return (
        f"{paint:.0f} ms | {shown:.0f} ms | {rate:.0f} | {max(frames):.0f} ms"
        f" | {heap / 1e6:.1f} MB"
    )


async def main(pictures: Path | None) -> None:
    """Print the table."""
    print(
        "| sessions | window | first paint | table drawn | frames a second"
        " | longest frame | JavaScript's heap |\n|---|---|---|---|---|---|---|"
    )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.PATH, args=chromium.ARGUMENTS
        )
        for number in SIZES:
            async with running() as service:
                fill(service.control, number)
                for width, colours in WINDOWS:
                    name = f"page-{number}-{width}-{colours}.png"
                    picture = pictures / name if pictures else None
                    row = await measured(browser, service, width, colours, picture)
                    print(f"| {number:,} | {width} px, {colours} | {row} |", flush=True)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    asyncio.run(main(parser.parse_args().pictures))

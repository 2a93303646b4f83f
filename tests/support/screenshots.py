"""Pictures of pages, for people to look at and for the documentation.

``pytest --screenshots DIR`` has the browser tests make them; otherwise none is made.
"""

import os
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "GPU_RECLAIM_SCREENSHOTS"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        metavar="DIR",
        help="browser tests put pictures of the pages there",
    )


def configure(config: pytest.Config) -> None:
    if folder := config.getoption("--screenshots"):
        os.environ[_FOLDER] = str(Path(folder).absolute())


def shoot(page: Any, name: str, **options: Any) -> None:
    """Take a picture of a page (Playwright's synchronous API), where wanted."""
    if folder := os.environ.get(_FOLDER):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png", animations="disabled", **options)


def shoot_both(page: Any, name: str, **options: Any) -> None:
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        shoot(page, f"{name}-{colours}", **options)

"""The page of a visit in the last moment of a suspend, as long as that takes."""

import asyncio
from pathlib import Path

from jinja2 import DictLoader, Environment
from tornado.web import Application, RequestHandler

import jupyterhub_gpu_reclaim
from tests.support import chromium
from tests.support.served import served

pytestmark = chromium.NEEDED

TEMPLATES = Path(jupyterhub_gpu_reclaim.__file__).parent / "hub/templates"


async def test_page_of_a_release_that_hangs_asks_the_hub_less_and_less_often():
    loads = []

    class Page(RequestHandler):
        def get(self):
            loads.append(self.request.path)
            text = (TEMPLATES / "stop_pending.html").read_text()
            beneath = "{% block script %}{% endblock script %}"
            pages = {"beneath/stop_pending.html": beneath, "it": text}
            spawner = {"reclaim_releasing": True}
            page = Environment(loader=DictLoader(pages), autoescape=True)
            self.finish(page.get_template("it").render(spawner=spawner))

    async with (
        served(Application([("/user", Page)])) as port,
        chromium.started_here() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{port}/user")
        await asyncio.sleep(3)
    assert 3 <= len(loads) <= 5  # after 0.25, 0.75 and 1.75 s

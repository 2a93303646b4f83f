"""Programs with a page of their own, as people have them behind their Jupyter server.

Used by ``idle_situations.py``. Those are played that are found on the ``PATH``, with
their page in Chromium: ``pip install streamlit shiny panel gradio dash tensorboard
marimo`` (in an environment of their own), and ``npm install code-server``.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page


def _enter_text(page: Page) -> None:
    """Three seconds of writing in the page's first field."""
    page.locator("input[type=text], textarea").first.click()
    page.keyboard.type("to be or not to be", delay=170)
    page.keyboard.press("Enter")


def _click(page: Page) -> None:
    page.get_by_role("button", name="Count").click()


@dataclass(frozen=True)
class Program:
    """One of them.

    Attributes:
        name: as people call it.
        installed: a command that comes with it.
        command: how it is started; ``{bin}`` is the folder of that command, ``{home}``
            the session's, ``{port}`` where it listens, and ``{prefix}`` the path under
            which its page is shown; in its files, too.
        shown: what its page has when it is there.
        files: that it needs, by name.
        write: what somebody does who writes; None: there is nothing to write.
        click: what somebody does who clicks once; likewise.
        absolute: it wants to know where it is shown.
    """

    name: str
    installed: str
    command: str
    shown: str
    files: dict[str, str] = field(default_factory=dict)
    write: Callable[[Page], None] | None = _enter_text
    click: Callable[[Page], None] | None = _click
    absolute: bool = False

    @property
    def folder(self) -> Path | None:
        """Where its commands are; None: it is not installed."""
        found = shutil.which(self.installed)
        return Path(found).parent if found else None


def _write_code(page: Page) -> None:
    page.get_by_text("a.py", exact=True).first.dblclick()
    page.wait_for_selector(".monaco-editor .view-line")
    page.wait_for_timeout(1500)
    page.keyboard.type("print('to be or not')", delay=170)


def write_in_terminal(page: Page) -> None:
    """Of VS Code: open a terminal, and write a command."""
    page.keyboard.press("Control+`")
    page.wait_for_selector(".xterm-helper-textarea", timeout=20_000)
    page.wait_for_timeout(1500)
    page.keyboard.type("echo to be or not\n", delay=170)


def _write_cell(page: Page) -> None:
    page.locator(".cm-content").first.click()
    page.keyboard.type("x = 'to be or not'", delay=170)


def _dash(name: str, news: int, click: Callable[[Page], None] | None) -> Program:
    """A page of Dash that asks for news every so many seconds; 0: never."""
    app = """
from dash import Dash, Input, Output, dcc, html
app = Dash(requests_pathname_prefix="{prefix}")
app.layout = html.Div(
    [
        dcc.Input(id="name"),
        html.Button("Count", id="count"),
        dcc.Interval(id="news", interval=NEWS * 1000 or 1000, disabled=not NEWS),
        html.P(id="said"),
    ]
)
@app.callback(
    Output("said", "children"),
    Input("count", "n_clicks"),
    Input("name", "value"),
    Input("news", "n_intervals"),
)
def say(clicks, name, news):
    return f"{clicks} {name} {news}"
app.run(port={port})
"""
    return Program(
        name,
        "dash-generate-components",
        "{bin}/python app.py",
        "text=Count",
        {"app.py": app.replace("NEWS", str(news))},
        write=None if news else _enter_text,
        click=click,
    )


VS_CODE = Program(
    "VS Code",
    "code-server",
    "{bin}/code-server --auth none --bind-addr 127.0.0.1:{port} --disable-telemetry"
    " --disable-update-check --user-data-dir {home}/.code {home}",
    ".monaco-workbench .statusbar-item",
    {
        "a.py": "",
        ".code/User/settings.json": json.dumps(
            {
                "security.workspace.trust.enabled": False,
                "workbench.startupEditor": "none",
                "chat.commandCenter.enabled": False,
            }
        ),
    },
    _write_code,
    click=None,
)
PROGRAMS = (
    VS_CODE,
    Program(
        "Streamlit",
        "streamlit",
        "{bin}/streamlit run app.py --server.port {port} --server.address 127.0.0.1"
        " --server.headless true --browser.gatherUsageStats false",
        "text=Counted",
        {
            "app.py": """
import streamlit as st
st.text_input("Name")
st.write("Counted", st.button("Count"))
"""
        },
    ),
    Program(
        "Shiny",
        "shiny",
        "{bin}/shiny run app.py --host 127.0.0.1 --port {port}",
        "text=Counted",
        {
            "app.py": """
from shiny import App, render, ui
page = ui.page_fluid(
    ui.input_text("name", "Name"),
    ui.input_action_button("count", "Count"),
    ui.output_text("said"),
)
def server(input, output, session):
    @render.text
    def said():
        return f"Counted {input.count()} {input.name()}"
app = App(page, server)
"""
        },
    ),
    Program(
        "Panel",
        "panel",
        "{bin}/panel serve app.py --address 127.0.0.1 --port {port}"
        " --allow-websocket-origin=*",
        "text=Counted",
        {
            "app.py": """
import panel as pn
name, count = pn.widgets.TextInput(name="Name"), pn.widgets.Button(name="Count")
said = pn.bind(lambda a, b: f"Counted {a} {b}", name, count.param.clicks)
pn.Column(name, count, said).servable()
"""
        },
    ),
    Program(
        "Gradio",
        "gradio",
        "{bin}/python app.py",
        "text=Count",
        {
            "app.py": """
import gradio
with gradio.Blocks() as demo:
    name, said = gradio.Textbox(label="Name"), gradio.Textbox(label="Said")
    gradio.Button("Count").click(lambda a: a + "!", name, said)
demo.launch(server_name="127.0.0.1", server_port={port}, root_path="{prefix}")
"""
        },
    ),
    _dash("Dash", 0, _click),
    _dash("Dash with news every 30 s", 30, _click),
    _dash("Dash with news every 2 s", 2, None),
    Program(
        "TensorBoard",
        "tensorboard",
        "{bin}/tensorboard --logdir {home}/logs --port {port}",
        "text=TensorBoard",
        write=None,
        click=lambda page: page.reload(),
    ),
    Program(
        "marimo",
        "marimo",
        "{bin}/marimo edit work.py --headless --no-token --host 127.0.0.1 --port {port}"
        " --skip-update-check --base-url {prefix}",
        ".cm-content",
        {
            "work.py": """
import marimo
app = marimo.App()

@app.cell
def _():
    1
    return

if __name__ == "__main__":
    app.run()
"""
        },
        _write_cell,
        click=None,
        absolute=True,
    ),
)

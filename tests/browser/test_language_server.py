"""Documents with a language server, in the same tab after the session's return."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from demo.admin import Admin
from tests.support.agent import wait_for
from tests.support.stack import Stack

from .conftest import ON_REQUEST_ONLY

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

#: Without the folder in which tests leave out the extension for language servers.
SETTINGS = {**ON_REQUEST_ONLY, "environment": {"PYTHONPATH": ""}}
#: A language server that notes the documents it is told of, and that checks nothing.
LANGUAGE_SERVER = """
import json, os, sys
def say(message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
    sys.stdout.buffer.flush()
while line := sys.stdin.buffer.readline():
    size = int(line.split(b":")[1])
    while sys.stdin.buffer.readline().strip():
        pass
    heard = json.loads(sys.stdin.buffer.read(size))
    if heard["method"] == "initialize":
        say({"id": heard["id"], "result": {"capabilities": {"textDocumentSync": 1}}})
    document = heard.get("params", {}).get("textDocument", {})
    texts = [document, *heard.get("params", {}).get("contentChanges", [])]
    with open("heard.log", "a") as log:
        for text in texts:
            print(os.getpid(), os.path.basename(document.get("uri", "")),
                  text.get("text", ""), file=log)
"""


@pytest.fixture
def language(stack: Stack, new_name: str) -> Path:
    """The person has two sources and a language server for them; what that hears."""
    home = stack.folder / "homes" / new_name
    settings = home / ".jupyter/lab/user-settings/@jupyterlab/lsp-extension"
    settings.mkdir(parents=True)
    chosen = json.dumps({"activate": "on"})
    (settings / "plugin.jupyterlab-settings").write_text(chosen)
    (home / "language_server.py").write_text(LANGUAGE_SERVER)
    server = {
        "argv": [sys.executable, str(home / "language_server.py")],
        "display_name": "Tiny",
        "languages": ["python"],
        "mime_types": ["text/x-python"],
        "version": 2,
    }
    manager = {"autodetect": False, "language_servers": {"tiny": server}}
    config = {"LanguageServerManager": manager}
    (home / ".jupyter/jupyter_server_config.json").write_text(json.dumps(config))
    for name in ("one.py", "two.py"):
        (home / name).write_text(f"{name[:3]} = 1\n")
    return home / "heard.log"


@pytest.mark.long
def test_language_server_hears_of_all_open_documents_again_after_the_return(
    stack: Stack,
    admin: Admin,
    new_name: str,
    sign_in: Callable[[str], Page],
    language: Path,
) -> None:
    page = sign_in(new_name)
    lab = f"/user/{new_name}/lab/tree/one.py?reset"
    page.goto(f"{stack.url}/hub/spawn/{new_name}?next={lab}", wait_until="commit")
    page.locator(".jp-DirListing-item", has_text="two.py").dblclick(timeout=90_000)

    def heard() -> set[tuple[str, str]]:
        lines = language.read_text().splitlines() if language.exists() else []
        return {(line.split()[0], text) for line in lines for text in line.split()[2:3]}

    wait_for(lambda: {text for _, text in heard()} >= {"one", "two"})
    page.locator(".jp-FileEditor .cm-content").last.click()
    page.keyboard.press("Control+Home")
    page.keyboard.type("new ")  # without jupyterlab-lsp it hears of that when it begins
    ended = {program for program, _ in heard()}
    admin.suspend(new_name)
    page.get_by_role("button", name="Resume", exact=True).first.click()

    def again() -> set[str]:
        return {text for program, text in heard() if program not in ended}

    wait_for(lambda: again() >= {"one", "new"})

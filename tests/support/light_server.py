"""A single-user server as ``jupyterhub-singleuser``, in a fraction of its time.

Without the Hub's database and pages, JupyterLab and the Notebook: three quarters of
two seconds of processor. Login, kernels, terminals and our extension are there; the
address of JupyterLab answers with an empty page (with a browser: :data:`WITH_LAB`).
``make demo-check`` starts, saves and brings back the whole server.
"""

import gc
import importlib
import os
import sys
from types import ModuleType
from typing import Any

#: What a Hub that is configured by tests starts (``c.Spawner.cmd``).
COMMAND = [sys.executable, __file__]
WITH_LAB = [*COMMAND, "with-lab"]
#: Modules that are imported and never used.
LEFT_OUT = (
    "sqlalchemy",
    "sqlalchemy.exc",
    "jupyterhub.orm",
    "jupyterhub.handlers",
    "jupyterhub.handlers.pages",
    "jupyterlab.extensions.pypi",
)
#: Packages that others do without: resolvers of names, formats that no schema has here.
NOT_THERE = (
    "aiodns",
    "fqdn",
    "isoduration",
    "rfc3986_validator",
    "uri_template",
    "webcolors",
)
#: Extensions of the server that have pages alone.
PAGES = ("jupyterlab", "jupyter_lsp", "notebook", "notebook_shim")
#: In place of JupyterLab's; the element is where that one's settings stand.
EMPTY_PAGE = (
    "<!doctype html><title>JupyterLab</title>"
    "<script id=jupyter-config-data type=application/json>{}</script>"
)


class LeftOut(ModuleType):
    """A module with any class, which nothing is ever an instance of."""

    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


def leave_out_modules() -> None:
    gc.disable()  # what is imported stays: a sixth of the time is the search for others
    sys.modules.update((name, LeftOut(name)) for name in LEFT_OUT)
    sys.modules.update(dict.fromkeys(NOT_THERE))
    # aiohttp reads the machine's 150 certificates twice, and a test's are its own
    named = "SSL_CERT_FILE" in os.environ
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    importlib.import_module("jupyterhub.singleuser")

    gc.enable()
    if not named:
        del os.environ["SSL_CERT_FILE"]


def leave_out_lab() -> None:
    """Answer for JupyterLab with an empty page, to whoever is logged in."""
    from jupyter_server.base.handlers import JupyterHandler
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.utils import url_path_join
    from tornado.web import authenticated

    class Lab(JupyterHandler):
        @authenticated
        def get(self) -> None:
            self.finish(EMPTY_PAGE)

    def find_server_extensions(app: ServerApp) -> None:
        found(app)
        app.jpserver_extensions.update(dict.fromkeys(PAGES, False))

    def init_webapp(app: ServerApp) -> None:
        made(app)
        page = url_path_join(app.base_url, r"/lab(?:/.*)?")
        app.web_app.add_handlers(".*$", [(page, Lab)])

    os.environ.setdefault("JUPYTERHUB_DEFAULT_URL", "/lab")
    patched: Any = ServerApp
    found, made = patched.find_server_extensions, patched.init_webapp
    patched.find_server_extensions = find_server_extensions
    patched.init_webapp = init_webapp


def hasten_lab() -> None:
    """Start no Node for the configuration of npm, and no manager of extensions."""
    from jupyterlab import commands

    commands._yarn_config = lambda _: {"yarn config": {}, "npm config": {}}
    sys.argv.append("--LabApp.extension_manager=readonly")


def main() -> int | None:
    leave_out_modules()
    from jupyterhub.singleuser import main as serve

    if WITH_LAB[-1] in sys.argv:
        sys.argv.remove(WITH_LAB[-1])
        hasten_lab()
    else:
        leave_out_lab()
    return serve()


if __name__ == "__main__":
    sys.exit(main())

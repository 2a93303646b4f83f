"""A single-user server as ``jupyterhub-singleuser``, in less than half of its time.

Tests start a hundred of them. JupyterHub's own takes two seconds of processor: half of
that for the Hub's database and pages, which a server imports and never uses, for Node,
which JupyterLab starts to read the configuration of npm, and for JupyterLab's manager
of extensions. All that a user meets is there: login, pages, kernels, terminals.
``make demo-check`` starts, saves and brings back the whole one.
"""

from __future__ import annotations

import sys
from types import ModuleType

#: What a Hub that is configured by tests starts (``c.Spawner.cmd``).
COMMAND = [sys.executable, __file__]
LEFT_OUT = (
    "sqlalchemy",
    "sqlalchemy.exc",
    "jupyterhub.orm",
    "jupyterhub.handlers",
    "jupyterhub.handlers.pages",
    "jupyterlab.extensions.pypi",
)


class LeftOut(ModuleType):
    """A module with any class, which nothing is ever an instance of."""

    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


def main() -> int | None:
    """Become the server; returns its exit status."""
    sys.modules.update((name, LeftOut(name)) for name in LEFT_OUT)
    from jupyterhub.singleuser import main as serve
    from jupyterlab import commands

    commands._yarn_config = lambda _: {"yarn config": {}, "npm config": {}}
    sys.argv.append("--LabApp.extension_manager=readonly")
    return serve()


if __name__ == "__main__":
    sys.exit(main())

"""JupyterHub's own tests, with our local spawner in place of its own.

A plugin of pytest, for tests that come with JupyterHub: each spawner of theirs is made
from ``SimpleLocalProcessSpawner``, which is ours before they import it. What cannot
pass is in ``upstream_differences.py``; ``tests/hub/test_upstream.py`` runs it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jupyterhub.spawner
import pytest
from traitlets import Bool

from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY
from tests.support import light_mocksu
from tests.support.upstream_differences import FAILS, RACES


class SimpleReclaimLocalSpawner(ReclaimLocalSpawner):
    """Sessions of the Hub's own user, as those of ``SimpleLocalProcessSpawner``."""

    run_as_hub_user = Bool(True).tag(config=True)


jupyterhub.spawner.SimpleLocalProcessSpawner = SimpleReclaimLocalSpawner
#: Seconds that a busy machine may take where a test expects a server at once.
PATIENCE = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is listed, and compare models of servers without what is ours."""
    names: set[str] = set()
    modules: set[Any] = set()
    for item in items:
        module = item.module  # type: ignore[attr-defined]
        name = f"{module.__name__.rpartition('.')[2]}::{item.name.partition('[')[0]}"
        names.add(name)
        modules.add(module)
        if name in FAILS:
            item.add_marker(pytest.mark.xfail(reason=FAILS[name], strict=True))
        if name in RACES:
            item.add_marker(pytest.mark.skip(reason=RACES[name]))
    collected = {name.partition("::")[0] for name in names}
    for name in (FAILS | RACES).keys() - names:
        if name.partition("::")[0] in collected:
            raise pytest.UsageError(f"upstream_differences.py: there is no {name}")
    for module in modules:
        if hasattr(module, "normalize_user"):
            module.normalize_user = _without_ours(module.normalize_user)
        if hasattr(module, "wait_for_spawner"):
            wait = module.wait_for_spawner
            module.wait_for_spawner = functools.partial(wait, timeout=PATIENCE)


def _without_ours(normalize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A server's state has our pointer beside what JupyterHub's own spawner has."""

    def normalized(user: Any) -> Any:
        for server in user.get("servers", {}).values():
            (server["state"] or {}).pop(KEY, None)
        return normalize(user)

    return normalized


@pytest.fixture(autouse=True)
def on_a_busy_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Servers start quickly, and slow ones are waited for (``no_patience``: not)."""
    if "app" not in request.fixturenames:
        yield
        return
    app = request.getfixturevalue("app")
    waits = {"slow_spawn_timeout": PATIENCE, "slow_stop_timeout": PATIENCE}
    with (
        mock.patch.dict(app.tornado_settings, waits),
        mock.patch.dict(app.config.MockSpawner, {"cmd": light_mocksu.COMMAND}),
    ):
        yield

"""What holds for all tests: long stories, and programs that start quickly."""

import gc
import os
import resource
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.cluster import options
from tests.support import (
    light_modules,
    network,
    pure,
    root,
    screenshots,
    sharing,
)
from tests.support.pure import pytest_ignore_collect  # noqa: F401

#: Those that wait for programs mostly run beside those that compute; of each
#: kind the longest first, so that in the end no worker is left with one of them alone.
WAIT = ["e2e", "browser", "hub", "kube", "service", "ui"]
COMPUTE = ["simulation", "node", "checkpoint", "hostile"]
#: Modules that take the place of slow ones that no test needs. Here, before a room's
#: own conftest.py imports any of them.
LIGHT = str(light_modules.FOLDER)
#: Nobody has its key.
ONE_CERTIFICATE = Path(__file__).parent / "support" / "one_certificate.pem"
sys.path.insert(0, LIGHT)
gc.disable()  # until all tests are known: nothing that is imported goes away


def pytest_addoption(parser: pytest.Parser) -> None:
    options.pytest_addoption(parser)
    screenshots.add_option(parser)
    parser.addoption("--long", action="store_true", help="the long stories as well")


def pytest_configure(config: pytest.Config) -> None:
    """Lead us, and every program that is started from here, past the slow modules."""
    screenshots.configure(config)
    # Hypothesis' limit for an example is wall clock, and programs run beside.
    settings.register_profile("beside programs", deadline=None)
    settings.load_profile("beside programs")
    # An ordinary user's 1024 open files are too few for those who call by the thousand.
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 8192 if most == resource.RLIM_INFINITY else min(8192, most)
    if 0 < now < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    if not _outside(config):
        # Each program reads the machine's certificates up to three times, 50 ms each,
        # also where the environment says which; Node takes 80 ms for its own. A file
        # without any is an error to httpx.
        os.environ["SSL_CERT_FILE"] = str(ONE_CERTIFICATE)
        os.environ.pop("NODE_EXTRA_CA_CERTS", None)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if LIGHT not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LIGHT, *paths]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()  # nor is any of it looked at again, a second at a time
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave the network of the others.

    Whoever only hands out the tests stays; so do frameworks on real cards, which look
    for the machine's interfaces, and who asks a real cluster.
    """
    config = session.config
    if getattr(config.option, "dist", "no") == "no" and not _outside(config):
        network.be_alone()


def _outside(config: pytest.Config) -> bool:
    return any(name in config.option.markexpr for name in ("gpu", "cluster"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Have one process run the files that share a stack.

    The long stories take too long for that: there each process has a stack.
    """
    if config.getoption("dist") != "loadfile" or config.getoption("--long"):
        return None
    from tests.support.scheduler import GroupScheduling

    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark what needs root, skip what is long, and begin with what takes longest."""
    root.mark(items)
    pure.mark(items)
    left_out = pytest.mark.skip(reason="a long story: make test-all runs it as well")
    for item in items:
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(left_out)
    turns = _turns(items)
    items.sort(
        key=lambda item: (turns.get(sharing.scope(item), 1), sharing.turn_of(item))
    )


def _turns(items: list[pytest.Item]) -> dict[str, float]:
    """Where each of the long ones begins, as a part of all of its kind."""
    turns: dict[str, float] = {}
    for kind in (WAIT, COMPUTE):
        mine = sorted(
            (item for item in items if _folder(item) in kind),
            key=lambda item: kind.index(_folder(item)),
        )
        scopes = list(dict.fromkeys(map(sharing.scope, mine)))
        turns |= {scope: turn / len(scopes) for turn, scope in enumerate(scopes)}
    return turns


def _folder(item: pytest.Item) -> str:
    return root.below_tests(item.path).parts[0]

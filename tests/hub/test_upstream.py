"""JupyterHub's own tests of its spawner, with ours in its place."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.hub import BIN
from tests.support.ran import ran

REPOSITORY = Path(__file__).parents[2]
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "tests.support.upstream")
#: Of its REST API: what starts, watches and stops servers.
OF_SERVERS = "spawn or progress or slow or never or race or options"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suite", "which", "at_least"),
    [
        ("test_spawner", "test", 36),
        ("test_api", OF_SERVERS, 20),
        ("test_named_servers", "test", 34),
        ("test_api", f"not ({OF_SERVERS})", 125),
        ("test_pages", "test", 126),
    ],
)
def test_jupyterhubs_own_tests_pass_but_for_the_listed_ones(
    suite, which, at_least, tmp_path
):
    modes = ["default_fixture_loop_scope=module", "default_test_loop_scope=module"]
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-c", os.devnull]
    command += ["--rootdir", tmp_path, "--basetemp", tmp_path / "tmp"]
    command += ["-o", "asyncio_mode=auto", "--timeout=120", "-p", "no:cacheprovider"]
    command += [word for mode in modes for word in ("-o", f"asyncio_{mode}")]
    command += [word for plugin in PLUGINS for word in ("-p", plugin)]
    command += ["--pyargs", f"jupyterhub.tests.{suite}", "-k", which]
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    env = {name: value for name, value in env.items() if "PYTEST_XDIST" not in name}
    ended = ran(command, cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= at_least, ended.stdout[-2000:]

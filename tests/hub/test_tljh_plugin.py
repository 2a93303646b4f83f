"""The plugin in TLJH's order: its own configuration, plugins, jupyterhub_config.d.

The order and the values are those of TLJH 2.0's ``jupyterhub_config.py``; TLJH itself
is tried in ``test_tljh.py``.
"""

import tomllib
from pathlib import Path

import pluggy
import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from jupyterhub_gpu_reclaim.hub import self_check
from jupyterhub_gpu_reclaim.hub.pages import EXTENSION
from jupyterhub_gpu_reclaim.hub.self_check import found_wrong
from jupyterhub_gpu_reclaim.hub.tljh import plugin

#: What TLJH sets before it calls its plugins, and what it loads after them.
TLJHS_OWN = """
import sys
c = get_config()
c.JupyterHub.spawner_class = "tljh.user_creating_spawner.UserCreatingSpawner"
c.JupyterHub.cleanup_servers = False
c.Authenticator.admin_users = {"boss"}
c.JupyterHub.services = []
c.JupyterHub.services.append({
    "name": "cull-idle", "admin": True,
    "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=900",
                "--cull-every=60", "--concurrency=5", "--max-age=7200"],
})
CALL_PLUGINS(c)
load_subconfig(LATER)
"""


@pytest.fixture
def said(tmp_path, monkeypatch):
    """What stands in TLJH's config.yaml."""
    values = {"gpu_reclaim": {"state_dir": str(tmp_path / "state")}}
    monkeypatch.setattr("jupyterhub_gpu_reclaim.hub.tljh.settings.read", lambda: values)
    return values


@pytest.fixture
def hub_of(tmp_path, said):
    """A Hub that has read TLJH's configuration, followed by these lines."""

    def read(later=""):
        manager = pluggy.PluginManager("tljh")
        manager.register(plugin)
        (tmp_path / "later.py").write_text(later)
        (tmp_path / "config.py").write_text(
            TLJHS_OWN.replace("LATER", repr(str(tmp_path / "later.py"))).replace(
                "CALL_PLUGINS(c)",
                "sys.modules['tljhs_plugins'].hook.tljh_custom_jupyterhub_config(c=c)",
            )
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "tljhs_plugins", manager)
            patch.setattr(JupyterHub, "spawner_class", None)
            JupyterHub.clear_instance()
            hub = JupyterHub.instance()
            try:
                hub.load_config_file(str(tmp_path / "config.py"))
            finally:
                JupyterHub.clear_instance()
        assert "update_config" not in vars(hub)
        return hub

    return read


def named(services):
    return [service["name"] for service in services]


def test_plugin_is_found_where_tljh_looks_for_it():
    pyproject = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text()
    )
    entry = pyproject["project"]["entry-points"]["tljh"]
    assert entry == {"gpu-reclaim": plugin.__name__}


def test_what_is_read_after_the_plugins_keeps_its_place_and_takes_none(hub_of):
    hub = hub_of(
        "c = get_config()\n"
        "c.JupyterHub.services = [{'name': 'grades'}]\n"
        "c.JupyterHub.jinja_environment_options = {'trim_blocks': True}\n"
        "c.JupyterHub.load_roles = [{'name': 'grader', 'scopes': ['self']}]\n"
        "c.Spawner.start_timeout = 45\n"
    )
    assert named(hub.services) == ["grades", "gpu-reclaim"]
    assert hub.jinja_environment_options == {
        "trim_blocks": True,
        "extensions": [EXTENSION],
    }
    roles = {role["name"]: role for role in hub.load_roles}
    assert {"grader", "user", "gpu-reclaim-service"} <= roles.keys()
    assert hub.config.Spawner.start_timeout == 45
    assert hub.config.JupyterHub.spawner_class.endswith(".ReclaimTLJHSpawner")
    assert found_wrong(hub.config) == []


def test_name_of_an_argument_that_is_no_setting_does_not_end_the_hub(hub_of, said):
    said["gpu_reclaim"] |= {"c": 1}
    assert "configure() takes no c" in " ".join(found_wrong(hub_of().config))


def test_keys_of_tljh_config_are_arguments_and_a_wrong_one_is_named(hub_of, said):
    said["gpu_reclaim"] |= {"idle_after": 1800}
    hub = hub_of()
    environment = hub.services[0]["environment"]
    assert "--IdlePolicy.idle_after=1800" in environment["GPU_RECLAIM_OPTIONS"]
    assert found_wrong(hub.config) == []
    said["gpu_reclaim"] |= {"idel_after": 60, "placement": "kubernetes"}
    wrong = " ".join(found_wrong(hub_of().config))
    assert "configure() takes no idel_after; did you mean idle_after" in wrong
    assert "gpu_reclaim.placement cannot be set" in wrong
    said["gpu_reclaim"] = 1800
    c = Config()
    c.JupyterHub.spawner_class = "UserCreatingSpawner"
    plugin.complete(c, {**said, "gpu_reclaim": 1800})
    assert "must have keys below it" in " ".join(found_wrong(c))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("c.SystemdSpawner.slice = 'users.slice'", "c.SystemdSpawner.slice"),
        ("c.UserCreatingSpawner.readonly_paths = ['/']", "Spawner.readonly_paths"),
        (
            "c.SystemdSpawner.unit_extra_properties = {'A': 'b'}",
            "unit_extra_properties",
        ),
    ],
)
def test_limit_that_a_session_of_ours_would_lose_leaves_tljhs_own(hub_of, line, name):
    hub = hub_of(f"c = get_config()\n{line}\n")
    assert hub.config.JupyterHub.spawner_class.endswith("UserCreatingSpawner")
    assert named(hub.services) == ["cull-idle", "gpu-reclaim"]
    [wrong] = found_wrong(hub.config)
    assert name in wrong
    assert "TLJH's own spawner stays" in wrong


def test_spawner_of_the_administrator_stays_and_is_named(hub_of):
    hub = hub_of("c = get_config()\nc.JupyterHub.spawner_class = 'simple'\n")
    assert hub.config.JupyterHub.spawner_class == "simple"
    assert "c.JupyterHub.spawner_class is 'simple'" in found_wrong(hub.config)[0]


def test_culler_that_nobody_has_set_goes(hub_of):
    assert named(hub_of().services) == ["gpu-reclaim"]


def test_culler_that_was_set_stays_and_is_judged_as_on_any_hub(hub_of, said):
    said["services"] = {"cull": {"timeout": 900, "max_age": 7200}}
    hub = hub_of()
    assert named(hub.services) == ["cull-idle", "gpu-reclaim"]
    assert found_wrong(hub.config) == []
    hub.db = None  # its authenticator asks for one
    [told] = [each for each in self_check.warnings(hub) if "service" in each]
    assert "'cull-idle' ends servers by its own rules" in told


def test_users_get_the_package_from_where_the_hub_got_it():
    [wanted] = plugin.tljh_extra_user_pip_packages()
    assert wanted.startswith("jupyterhub-gpu-reclaim")

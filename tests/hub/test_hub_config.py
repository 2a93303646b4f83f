"""``configure(c)``: it adds, never overwrites, and a real Hub takes what it makes."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
from traitlets.config import Config

from jupyterhub_gpu_reclaim.hub import config_check, self_check
from jupyterhub_gpu_reclaim.hub.config import configure
from jupyterhub_gpu_reclaim.hub.pages import EXTENSION
from jupyterhub_gpu_reclaim.hub.self_check import found_wrong
from jupyterhub_gpu_reclaim.service.settings.environment import (
    ANNOUNCEMENT,
    SPAWNER_TOKEN,
)

#: The service's, without a word that could be wrong or secret.
PROGRAM = [sys.executable, "-P", "-m", "jupyterhub_gpu_reclaim.service"]


def options_of(service):
    assert service["command"] == PROGRAM  # whatever is said there, everybody can read
    return json.loads(service["environment"]["GPU_RECLAIM_OPTIONS"])


def test_configure_of_an_empty_configuration_sets_everything(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), idle_after=1800, service_port=4711)
    [service] = c.JupyterHub.services
    assert service["url"] == "http://127.0.0.1:4711"
    assert "--IdlePolicy.idle_after=1800" in options_of(service)
    assert c.JupyterHub.spawner_class == "gpu-reclaim-local"
    assert c.JupyterHub.cleanup_servers is False
    assert c.JupyterHub.jinja_environment_options == {"extensions": [EXTENSION]}
    assert c.ReclaimMixin.reclaim_service == f"unix:{tmp_path}/s/spawner.sock"
    names = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert names["user"]["scopes"][0] == "self"
    assert names["gpu-reclaim-service"]["services"] == ["gpu-reclaim"]


def test_configure_hands_on_none_where_that_is_a_value(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), busy_cpu_percent=None)
    words = options_of(c.JupyterHub.services[0])
    assert "--IdlePolicy.busy_cpu_percent=None" in words


def test_configure_for_a_cluster_names_no_agent_and_the_other_spawner(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), placement="kubernetes")
    [service] = c.JupyterHub.services
    assert c.JupyterHub.spawner_class == "gpu-reclaim"
    assert "--ReclaimService.placement=kubernetes" in options_of(service)
    assert not any("Service.agent=" in word for word in options_of(service))


def test_configure_for_docker_names_the_machines_agent_and_its_spawner(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), placement="docker")
    [service] = c.JupyterHub.services
    assert c.JupyterHub.spawner_class == "gpu-reclaim-docker"
    assert not any("placement" in word for word in options_of(service))
    assert not found_wrong(c)


def test_configure_in_a_pod_makes_the_service_listen_where_the_proxy_finds_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    for address, host in (("10.244.1.7", "10.244.1.7"), ("fd00::7", "[fd00::7]")):
        found = [(0, 0, 0, "", (address, 0))]
        c = Config()
        configure(c, state_dir=str(tmp_path / "s"), placement="kubernetes")
        assert c.JupyterHub.services[0]["url"] == f"http://{host}:10101"
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), service_host="10.1.2.3")
    assert c.JupyterHub.services[0]["url"] == "http://10.1.2.3:10101"


def test_configure_keeps_what_the_administrator_has_set(tmp_path):
    c = Config()
    c.JupyterHub.spawner_class = "mine"
    c.JupyterHub.cleanup_servers = True
    c.JupyterHub.services = [{"name": "culler"}]
    c.JupyterHub.jinja_environment_options = {
        "trim_blocks": True,
        "extensions": ["jinja2.ext.do"],
    }
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "read:hub"]}]
    c.Spawner.start_timeout = 5
    c.PAMAuthenticator.admin_users = {"root"}
    c.Authenticator.admin_users.add("boss")
    configure(c, state_dir=str(tmp_path / "s"))
    assert c.JupyterHub.spawner_class == "mine"
    assert c.JupyterHub.cleanup_servers is True
    assert c.Spawner.start_timeout == 5
    assert [s["name"] for s in c.JupyterHub.services] == ["culler", "gpu-reclaim"]
    assert c.JupyterHub.jinja_environment_options == {
        "trim_blocks": True,
        "extensions": ["jinja2.ext.do", EXTENSION],
    }
    roles = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert roles["user"]["scopes"] == [
        "self",
        "read:hub",
        "access:services!service=gpu-reclaim",
    ]
    assert roles.keys() == {"user", "gpu-reclaim-service"}


def test_settings_reach_the_service_by_their_full_names(tmp_path):
    c = Config()
    c.ReclaimMixin.realm = "teaching"
    given = {
        "idle_after": 1800,
        "grace": 3600,
        "agent": "unix:/a",
    }
    configure(c, state_dir=str(tmp_path / "s"), **given)
    assert found_wrong(c) == []
    words = {*options_of(c.JupyterHub.services[0])}
    assert {"--IdlePolicy.idle_after=1800", "--ReclaimService.grace=3600"} <= words
    assert "--ReclaimService.agent=unix:/a" in words


def test_setting_in_a_section_of_its_own_is_said_when_the_service_is_started(tmp_path):
    c = Config()
    c.IdlePolicy.idle_after = 1800
    configure(c, state_dir=str(tmp_path / "s"))
    c.Guards.min_age = 5
    said = [each.partition(" has")[0] for each in config_check.misplaced(c)]
    assert sorted(said) == ["c.Guards.min_age", "c.IdlePolicy.idle_after"]


def test_announcement_of_the_hub_is_passed_to_the_service(tmp_path, monkeypatch):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"))
    environment = c.JupyterHub.services[0]["environment"]
    monkeypatch.setattr(self_check, "warnings", lambda hub: [])
    hub = SimpleNamespace(config=c, template_vars={"announcement": "<b>Monday</b>"})
    self_check.look(hub, environment)
    assert environment[ANNOUNCEMENT] == "<b>Monday</b>"


def test_secrets_are_made_once_and_are_for_root_only(tmp_path):
    made = []
    for _ in range(2):
        c = Config()
        configure(c, state_dir=str(tmp_path / "s"))
        made.append(c.JupyterHub.services[0]["api_token"])
    assert made[0] == made[1]
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    for file in (tmp_path / "s").iterdir():
        assert file.stat().st_mode & 0o077 == 0
    assert made[0] not in " ".join(c.JupyterHub.services[0]["command"])


def test_second_call_changes_nothing_and_is_said(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"))
    assert found_wrong(c) == []
    configure(c, state_dir=str(tmp_path / "s"), service_port=4711)
    [service] = c.JupyterHub.services
    assert service["url"] == "http://127.0.0.1:10101"
    assert "runs once" in found_wrong(c)[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"idle_after": "30m"}, "idle_after must be a duration .*, not '30m'"),
        ({"idle_after": -5}, "idle_after must be a duration .*, not -5"),
        ({"min_age": True}, "min_age must be a duration"),
        ({"sample_interval": "nan"}, "sample_interval must be a number from 0.5"),
        ({"sample_interval": 0}, "sample_interval must be a number from 0.5 to 600"),
        ({"idel_after": 5}, "no idel_after; did you mean idle_after?"),
        ({"placement": "kubernets"}, "'docker', 'kubernetes', not 'kubernets'"),
        ({"placement": ["local"]}, "placement must be one of 'local', "),
        ({"service_port": "http"}, "service_port must be a whole number"),
        ({"service_port": True}, "service_port must be a whole number"),
        ({"service_host": "a b"}, "service_host must be an address"),
        ({"agent": "/run/agent.sock"}, "agent must be like unix:/path"),
        ({"state_dir": "state"}, "state_dir must be an absolute path"),
        (
            {"state_dir": "/proc/nothing/here"},
            "state_dir: the folder .* cannot be made",
        ),
        ({"service_environment": {"A": 1}}, "service_environment must be"),
        ({"IdlePolicy.idle_after": 60}, "no IdlePolicy.idle_after; did you mean idle"),
        ({"grase": 1}, "no grase; did you mean grace?"),
        ({"grace": "1 h"}, "not .1 h"),
        ({"grace": None}, "grace must be a number"),
        ({"probe": print}, "probe is a function"),
        ({"event_log": "/var/\0"}, "event_log is a function, or holds a NUL"),
        (
            {"sample_interval": 9999},
            "sample_interval must be a number from 0.5 to 600, not 9999",
        ),
        ({"rules": [{"group": "a", "idle_afer": 3}]}, "rule 1: 'idle_afer'"),
    ],
)
def test_mistake_is_said_and_starts_nothing_but_the_hub(tmp_path, given, said):
    c = Config()
    configure(c, **{"state_dir": str(tmp_path / "s"), **given})
    [problem] = found_wrong(c)
    assert re.search(said, problem), problem
    [service] = c.JupyterHub.services
    assert service["command"] == PROGRAM  # nothing that could be wrong
    assert c.JupyterHub.spawner_class == "gpu-reclaim-local"


def test_mistake_repeats_no_value_that_may_be_a_secret(tmp_path):
    c = Config()
    url = "ftp://user:hunter2@x"
    configure(c, state_dir=str(tmp_path / "s"), webhook_url=url, messenger_file=5)
    assert "webhook_url must be like" in found_wrong(c)[0]
    assert "hunter2" not in json.dumps(c.JupyterHub.services)


def test_wrong_placement_in_a_pod_never_starts_sessions_beside_the_hub(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), placement="kubernets")
    assert c.JupyterHub.spawner_class == "gpu-reclaim"


def test_wrong_setting_of_our_spawner_is_said_and_taken_out(tmp_path):
    c = Config()
    c.ReclaimMixin.reclaim_service = 10
    c.ReclaimMixin.realm = "teaching"
    c.ReclaimMixin.start_timeout = 77  # of every spawner, and none of ours
    configure(c, state_dir=str(tmp_path / "s"))
    assert "reclaim_service must be a unicode string" in found_wrong(c)[0]
    assert c.ReclaimMixin.reclaim_service != 10
    assert c.ReclaimMixin.realm == "teaching"
    assert c.ReclaimMixin.start_timeout == 77


@pytest.mark.parametrize("section", ["KubeSpawner", "ReclaimKubeSpawner"])
def test_a_namespace_for_each_user_is_refused_by_name(tmp_path, section):
    """The pods run, and nobody sees them: every session would look as if not there."""
    c = Config()
    c[section].enable_user_namespaces = True
    configure(c, placement="kubernetes", state_dir=str(tmp_path / "s"))
    [problem] = found_wrong(c)
    assert problem.startswith(f"{section}.enable_user_namespaces gives each user")
    assert c[section].enable_user_namespaces is True  # sessions start as they did


def test_secret_that_cannot_be_kept_is_said(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "spawner.token").mkdir()
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"))
    assert "spawner.token cannot be used" in found_wrong(c)[0]
    assert len(c.JupyterHub.services[0]["environment"][SPAWNER_TOKEN]) >= 32


def test_a_service_in_a_pod_finds_the_api_server(tmp_path, monkeypatch):
    """The Hub gives a service next to nothing of its own environment."""
    said = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    c = Config()
    configure(c, placement="kubernetes", state_dir=str(tmp_path / "s"))
    environment = c.JupyterHub.services[0]["environment"]
    assert said.items() <= environment.items()

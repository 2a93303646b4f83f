"""``configure(c)``: it adds, never overwrites, and a real Hub takes what it makes."""

from __future__ import annotations

import json

import pytest
from traitlets.config import Config

from jupyterhub_gpu_reclaim.hub_config import TEMPLATES, configure


def options_of(service):
    assert len(service["command"]) == 1  # whatever is said there, everybody can read
    return json.loads(service["environment"]["GPU_RECLAIM_OPTIONS"])


def test_configure_of_an_empty_configuration_sets_everything(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), idle_after=1800, service_port=4711)
    [service] = c.JupyterHub.services
    assert service["url"] == "http://127.0.0.1:4711"
    assert "--IdlePolicy.idle_after=1800" in options_of(service)
    assert c.JupyterHub.spawner_class == "gpu-reclaim-local"
    assert c.JupyterHub.cleanup_servers is False
    assert c.JupyterHub.template_paths == [str(TEMPLATES)]
    assert c.ReclaimMixin.reclaim_service == "http://127.0.0.1:4711"
    names = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert names["user"]["scopes"][0] == "self"
    assert names["gpu-reclaim-service"]["services"] == ["gpu-reclaim"]


def test_configure_for_a_cluster_names_no_agent_and_the_other_spawner(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), placement="kubernetes")
    [service] = c.JupyterHub.services
    assert c.JupyterHub.spawner_class == "gpu-reclaim"
    assert "--ReclaimService.placement=kubernetes" in options_of(service)
    assert not any("Service.agent=" in word for word in options_of(service))
    with pytest.raises(ValueError, match="placement"):
        configure(Config(), state_dir=str(tmp_path / "s"), placement="moon")


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
        assert c.ReclaimMixin.reclaim_service == f"http://{host}:10101"
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"), service_host="10.1.2.3")
    assert c.JupyterHub.services[0]["url"] == "http://10.1.2.3:10101"


def test_configure_keeps_what_the_administrator_has_set(tmp_path):
    c = Config()
    c.JupyterHub.spawner_class = "mine"
    c.JupyterHub.cleanup_servers = True
    c.JupyterHub.services = [{"name": "culler"}]
    c.JupyterHub.template_paths.append("/srv/templates")
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "read:hub"]}]
    c.Spawner.start_timeout = 5
    c.PAMAuthenticator.admin_users = {"root"}
    c.Authenticator.admin_users.add("boss")
    configure(c, state_dir=str(tmp_path / "s"), admins=["ada"])
    assert c.JupyterHub.spawner_class == "mine"
    assert c.JupyterHub.cleanup_servers is True
    assert c.Spawner.start_timeout == 5
    assert [s["name"] for s in c.JupyterHub.services] == ["culler", "gpu-reclaim"]
    assert c.JupyterHub.template_paths == ["/srv/templates", str(TEMPLATES)]
    roles = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert roles["user"]["scopes"] == [
        "self",
        "read:hub",
        "access:services!service=gpu-reclaim",
    ]
    assert roles["gpu-reclaim-admin"]["users"] == ["ada", "boss", "root"]


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


def test_second_call_is_refused(tmp_path):
    c = Config()
    configure(c, state_dir=str(tmp_path / "s"))
    with pytest.raises(ValueError, match="runs once"):
        configure(c, state_dir=str(tmp_path / "s"))


@pytest.mark.parametrize("name", ["grace", "A.b c", "x-y.z"])
def test_option_of_a_wrong_form_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is not of the form"):
        configure(Config(), state_dir=str(tmp_path / "s"), service_options={name: 1})


def test_relative_folder_is_refused():
    with pytest.raises(ValueError, match="absolute"):
        configure(Config(), state_dir="state")


def test_a_service_in_a_pod_finds_the_api_server(tmp_path, monkeypatch):
    """The Hub gives a service next to nothing of its own environment."""
    said = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    c = Config()
    configure(c, placement="kubernetes", state_dir=str(tmp_path / "s"))
    environment = c.JupyterHub.services[0]["environment"]
    assert said.items() <= environment.items()

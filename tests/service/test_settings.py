"""Settings, environment and scopes: documented, checked, and the least."""

from pathlib import Path

import pytest
from traitlets import Float, TraitError

from jupyterhub_gpu_reclaim.common.auth import scopes
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.node.setup.settings import AgentSettings
from jupyterhub_gpu_reclaim.service.settings.environment import (
    SPAWNER_TOKEN,
    HubEnvironment,
)
from jupyterhub_gpu_reclaim.service.settings.options import Options

FROM_HUB = {
    "JUPYTERHUB_API_TOKEN": "token-of-the-service",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:10202",
    "JUPYTERHUB_SERVICE_PREFIX": "/lab/services/gpu-reclaim/",
    "JUPYTERHUB_BASE_URL": "/lab/",
    SPAWNER_TOKEN: "s" * 32,
    "GPU_RECLAIM_SPAWNER_SOCKET": "/nowhere/spawner.sock",
}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in (Options, AgentSettings)
        for name, trait in kind.class_own_traits(config=True).items()
        if isinstance(trait, Float)
    ],
)
def test_number_that_is_none_is_refused(kind, name, value):
    with pytest.raises(TraitError):
        setattr(kind(), name, value)


def test_surroundings_are_taken_from_the_hub():
    found = HubEnvironment.read(FROM_HUB)
    assert (found.host, found.port) == ("127.0.0.1", 10202)
    assert found.prefix == "/lab/services/gpu-reclaim/"
    assert found.hub_prefix == "/lab/hub/"


def test_surroundings_never_show_their_secrets():
    text = repr(HubEnvironment.read(FROM_HUB))
    assert "token-of-the-service" not in text
    assert "sss" not in text


def test_surroundings_without_a_hub_name_all_that_is_missing():
    with pytest.raises(Refused) as caught:
        HubEnvironment.read({"JUPYTERHUB_API_TOKEN": "x"})
    message = caught.value.message
    assert "JUPYTERHUB_SERVICE_URL" in message
    assert SPAWNER_TOKEN in message
    assert "JUPYTERHUB_API_TOKEN," not in message


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1", "http://127.0.0.1", "http://a:b", "x", "http://:1"]
)
def test_surroundings_with_an_address_we_cannot_serve_are_refused(url):
    with pytest.raises(Refused) as caught:
        HubEnvironment.read(FROM_HUB | {"JUPYTERHUB_SERVICE_URL": url})
    assert repr(url) in caught.value.message


def test_settings_without_a_wish_are_the_orchestrators_own():
    assert Options().settings() == Settings()


def test_scopes_are_explained():
    page = Path("docs/reference/scopes.md").read_text()
    ours = scopes.SERVICE_SCOPES + scopes.USER_SCOPES
    for scope in (*ours, scopes.STOPS_ALL, scopes.MANAGE):
        assert f"| `{scope}` |" in page


def test_scopes_are_known_to_the_installed_hub():
    from jupyterhub.scopes import scope_definitions

    for scope in scopes.SERVICE_SCOPES:
        assert scope in scope_definitions
    assert scopes.METRICS in scope_definitions

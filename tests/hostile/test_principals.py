"""A user whose name reads as somebody else's, in the audit and on the pages."""

import pytest

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES, of_service, of_user
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane.audit import sentence
from tests.service.conftest import ACCESS, PEOPLE, SessionsInMemory, service

__all__ = ["service"]

NAMES = ["service monitor", "gpu-reclaim", "user service monitor", "user ada", "admin"]


@pytest.mark.parametrize("name", NAMES)
def test_user_with_such_a_name_is_nobody_else(name):
    others = [OURSELVES, of_service("monitor"), of_service("gpu-reclaim")]
    others += [of_user(other) for other in [*NAMES, "ada"] if other != name]
    assert of_user(name) not in others


def test_act_of_a_user_named_like_us_is_not_told_as_ours():
    row = AuditLine(
        at=1.0, key=SessionKey("ada"), who=of_user("gpu-reclaim"), what="ask to suspend"
    )
    assert sentence(row).startswith("user gpu-reclaim asked")


async def test_orders_of_a_user_named_like_a_service_are_told_apart(
    service, monkeypatch
):
    name = "service ada"
    model = {"kind": "user", "name": name, "scopes": [ACCESS]}
    monkeypatch.setitem(PEOPLE, "token-odd", model)
    control: SessionsInMemory = service.control
    control.put(name)
    control.put("ada")
    path = "api/sessions/service%20ada/-/suspend"
    assert (await service.call(path, "token-odd", "POST", {})).code == 202
    assert control.calls[-1] == ("suspend", SessionKey(name), "user service ada")
    refused = await service.call(
        "api/sessions/ada/-/suspend", "token-service-ada", "POST", {}
    )
    assert refused.code == 404

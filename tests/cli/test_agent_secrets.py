"""``agents secrets``: made once in a cluster, whatever is there already.

The cluster is a double of the API server (``tests/support/cluster.py``), which judges
each object by Kubernetes' own schemas.
"""

import base64
import json

import pytest

from jupyterhub_gpu_reclaim.cli import agent_secrets
from jupyterhub_gpu_reclaim.cli.agent_secrets import Wanted, make_missing, new
from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.support.cluster import Cluster

WANTED = Wanted()
OURS = [WANTED.access, WANTED.tls, WANTED.token, WANTED.master_keys]


@pytest.fixture
async def cluster():
    made = Cluster()
    made.open()
    yield made
    await made.close()
    assert made.violations == []


@pytest.fixture
async def api(cluster):
    made = Connection(
        cluster.url,
        lambda: {"Authorization": "Bearer hook"},
        Reason.CLUSTER_UNREACHABLE,
    )
    yield made
    made.close()


def kept(cluster):
    return {
        name: {file: base64.b64decode(text) for file, text in one["data"].items()}
        for (_, name), one in cluster.objects["secrets"].items()
    }


async def test_what_is_missing_is_made_and_a_second_run_changes_nothing(cluster, api):
    await make_missing(api, WANTED)
    first = kept(cluster)
    assert sorted(first) == sorted(OURS)
    assert first[WANTED.access] == {
        "token": first[WANTED.token]["token"],
        "ca.crt": first[WANTED.tls]["ca.crt"],
    }
    places = {name: where for where, name in cluster.objects["secrets"]}
    assert places.pop(WANTED.access) == "jupyterhub"
    assert set(places.values()) == {"gpu-reclaim"}
    calls = len(cluster.calls)
    await make_missing(api, WANTED)
    assert kept(cluster) == first
    assert {verb for _, verb, _ in cluster.calls[calls:]} == {"get"}


async def test_a_run_that_was_cut_off_is_finished_with_what_is_there(cluster, api):
    cluster.forbidden = {("create", "secrets")}
    some = {one["metadata"]["name"]: one for one in new(WANTED)}
    for name in (WANTED.token, WANTED.master_keys):
        cluster.put("secrets", some[name])
    with pytest.raises(Unreachable) as refused:
        await make_missing(api, WANTED)
    assert refused.value.reason is Reason.CLUSTER_FORBIDS
    assert "create secrets" in refused.value.message
    before = kept(cluster)
    cluster.forbidden = set()
    await make_missing(api, WANTED)
    after = kept(cluster)
    assert {name: after[name] for name in before} == before
    assert after[WANTED.access]["token"] == before[WANTED.token]["token"]


async def test_a_secret_of_somebody_else_is_taken_and_the_hub_gets_its_authority(
    cluster, api
):
    """As of cert-manager, or made by hand under another name."""
    wanted = Wanted(tls="of-cert-manager")
    [theirs] = [
        one for one in new(wanted) if one["metadata"]["name"] == "of-cert-manager"
    ]
    cluster.put("secrets", theirs)
    await make_missing(api, wanted)
    made = kept(cluster)
    assert made[WANTED.access]["ca.crt"] == made["of-cert-manager"]["ca.crt"]


async def test_a_token_that_is_made_anew_reaches_the_hub(cluster, api):
    await make_missing(api, WANTED)
    before = kept(cluster)
    where = ("gpu-reclaim", WANTED.token)
    cluster.drop("secrets", cluster.objects["secrets"][where])
    await make_missing(api, WANTED)
    after = kept(cluster)
    assert after[WANTED.token] != before[WANTED.token]
    assert after[WANTED.access]["token"] == after[WANTED.token]["token"]
    for name in (WANTED.tls, WANTED.master_keys):
        assert after[name] == before[name]


async def test_without_a_name_there_is_no_master_key(cluster, api):
    await make_missing(api, Wanted(master_keys=""))
    assert sorted(kept(cluster)) == sorted(set(OURS) - {WANTED.master_keys})


async def test_an_api_server_that_does_not_answer_is_said(cluster, api):
    await cluster.go_away()
    with pytest.raises(Unreachable) as refused:
        await make_missing(api, WANTED)
    assert refused.value.reason is Reason.CLUSTER_UNREACHABLE
    cluster.come_back()


def test_without_make_they_are_printed_for_kubectl(capsys):
    names = ["--hub-namespace=teaching", "--access=theirs", "--master-keys="]
    assert main(["agents", "secrets", *names]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["kind"] == "List"
    places = {
        one["metadata"]["name"]: one["metadata"]["namespace"]
        for one in printed["items"]
    }
    assert places == {
        "theirs": "teaching",
        WANTED.token: "gpu-reclaim",
        WANTED.tls: "gpu-reclaim",
    }


def test_outside_of_a_pod_nothing_is_made(capsys, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["agents", "secrets", "--make"]) == 1
    assert "--make is for a pod with an account" in capsys.readouterr().err
    assert agent_secrets.ACCOUNT.parts[-2:] == ("kubernetes.io", "serviceaccount")

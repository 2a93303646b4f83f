"""Who may talk to whom: our policies, held against each connection that the parts make.

What the policies mean is evaluated (``tests/support/network_policies.py``); no plugin
enforces them here.
"""

import pytest
from kubespawner import KubeSpawner

from jupyterhub_gpu_reclaim.service.settings.options import Options
from tests.support import helm
from tests.support.helm import LEAST, merged
from tests.support.network_policies import Party, reaches

pytestmark = helm.needed

AGENT = Options().agent_port
SERVICE = 10101
HUB = {"app.kubernetes.io/name": "jupyterhub", "app.kubernetes.io/component": "hub"}
PROXY = {**HUB, "app.kubernetes.io/component": "proxy"}
USER = {**HUB, "app.kubernetes.io/component": KubeSpawner.component_label.default_value}
AGENTS = {"app.kubernetes.io/name": "gpu-reclaim-agent"}
PARTIES = {
    "hub": Party("jupyterhub", HUB, {"hub": 8081}),
    "proxy": Party("jupyterhub", PROXY, {"http": 8000, "api": 8001}),
    "user": Party("jupyterhub", USER, {"notebook-port": 8888}),
    "agent": Party("gpu-reclaim", AGENTS, {"agent": AGENT}),
    "beside the agents": Party("gpu-reclaim", {"app": "store"}),
    "test": Party("gpu-reclaim", {"app.kubernetes.io/name": "gpu-reclaim-agent-test"}),
    "prometheus": Party("monitoring", {"app": "prometheus"}),
    "another hub": Party("elsewhere", HUB),
    "stranger": Party("elsewhere", {}),
}


def ours():
    return [helm.one_of(helm.rendered(), "NetworkPolicy")]


def of_values(**chosen):
    """The Hub's policy: z2jh's own rule for 8081, and what the notes add."""
    values = helm.hub_values(merged(LEAST, chosen))
    own = {
        "from": [{"podSelector": {"matchLabels": PROXY}},
                 {"podSelector": {"matchLabels": USER}}],
        "ports": [{"port": 8081}],
    }  # fmt: skip
    added = values["hub"]["networkPolicy"]["ingress"]
    return {
        "metadata": {"namespace": "jupyterhub"},
        "spec": {
            "podSelector": {"matchLabels": HUB},
            "policyTypes": ["Ingress"],
            "ingress": [own, *added],
        },
    }


def of_users_pods():
    """z2jh's policy for users' pods, as the chart makes it unless told otherwise."""
    way_in = {
        "from": [{"podSelector": {"matchLabels": HUB}},
                 {"podSelector": {"matchLabels": PROXY}}],
        "ports": [{"port": "notebook-port"}],
    }  # fmt: skip
    return {
        "metadata": {"namespace": "jupyterhub"},
        "spec": {
            "podSelector": {"matchLabels": USER},
            "policyTypes": ["Ingress"],
            "ingress": [way_in],
        },
    }


def who_reaches(policies, target, port):
    return {
        name
        for name, party in PARTIES.items()
        if name != target and reaches(policies, party, PARTIES[target], port)
    }


def test_the_labels_are_those_of_the_real_pods():
    made = helm.documents(helm.ROOT / "tests" / "cluster" / "hub.yaml")
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in made
        if one["kind"] == "Deployment"
    }
    assert pods == {"hub": HUB, "proxy": PROXY}
    agents = helm.one_of(helm.rendered(), "DaemonSet")
    template = agents["spec"]["template"]
    assert template["metadata"]["labels"] == AGENTS
    [port] = template["spec"]["containers"][0]["ports"]
    assert PARTIES["agent"].ports == {port["name"]: port["containerPort"]}


def test_only_the_hubs_pod_reaches_the_agents_and_on_their_port_alone():
    assert who_reaches(ours(), "agent", AGENT) == {"hub"}
    for port in (22, 8081, SERVICE, AGENT + 1):
        assert who_reaches(ours(), "agent", port) == set()


def test_the_agents_reach_what_they_need():
    """Their store, wherever it is."""
    assert reaches(ours(), PARTIES["agent"], PARTIES["beside the agents"], 9000)
    assert reaches(ours(), PARTIES["agent"], PARTIES["stranger"], 443)


def test_agents_need_no_way_into_users_pods():
    """They ask a session's server on its loopback (``sampling/jupyter_api.py``)."""
    policies = [of_values(), of_users_pods(), *ours()]
    assert who_reaches(policies, "user", 8888) == {"hub", "proxy"}


def test_nothing_of_the_hubs_own_connections_is_touched():
    for source, target, port in [
        ("user", "hub", 8081),
        ("proxy", "hub", 8081),
        ("hub", "proxy", 8001),
        ("proxy", "user", 8888),
        ("hub", "user", 8888),
    ]:
        assert reaches(ours(), PARTIES[source], PARTIES[target], port)


@pytest.mark.parametrize(
    ("monitored", "readers"), [(False, {"proxy"}), (True, {"proxy", "prometheus"})]
)
def test_the_service_is_reached_through_the_proxy_and_by_no_user(monitored, readers):
    policies = [of_values(monitoring={"podMonitor": monitored}), *ours()]
    assert who_reaches(policies, "hub", SERVICE) == readers
    assert who_reaches(policies, "hub", 8081) == {"proxy", "user"}
    assert reaches(policies, PARTIES["hub"], PARTIES["agent"], AGENT)


def test_the_chart_lets_in_its_hub_and_while_it_is_tested_the_test():
    values = merged(LEAST, {"hub": {"namespace": "elsewhere"}})
    always = [helm.one_of(helm.rendered(values), "NetworkPolicy")]
    tested = [*always, helm.one_of(helm.hooks("test", values), "NetworkPolicy")]
    assert who_reaches(always, "agent", AGENT) == {"another hub"}
    assert who_reaches(tested, "agent", AGENT) == {"another hub", "test"}
    assert who_reaches(tested, "agent", 22) == set()


@pytest.mark.parametrize("lost", ["namespaceSelector", "podSelector", "ports"])
def test_a_policy_that_has_lost_a_part_would_be_noticed(lost):
    [policy] = ours()
    rule = policy["spec"]["ingress"][0]
    (rule if lost == "ports" else rule["from"][0]).pop(lost)
    changed = [who_reaches([policy], "agent", port) for port in (AGENT, 22)]
    assert changed != [{"hub"}, set()]

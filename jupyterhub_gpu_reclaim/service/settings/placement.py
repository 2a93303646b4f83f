"""Chooses the ``Agent``: the machine's one agent, or the router of a cluster.

If sessions are processes of this machine, nothing of Kubernetes is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.clients.agent_router import AgentRouter
from jupyterhub_gpu_reclaim.service.clients.agents import Agents
from jupyterhub_gpu_reclaim.service.clients.informer import Informer
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent
    from jupyterhub_gpu_reclaim.service.settings.options import Options


#: Labels of the agents' pods, as the chart and the manifests set them.
AGENT_SELECTOR = "app.kubernetes.io/name=gpu-reclaim-agent"
#: The name in the certificate of every agent of a cluster, whatever its address is.
AGENT_NAME = "gpu-reclaim-agent"


async def agent_of(options: Options, journal: Journal) -> AnyAgent:
    """The agent, asked in that journal's term.

    Raises:
        Refused: there is no way to the API server, or packages are missing.
    """
    if options.placement == "kubernetes":
        return await _fleet(options, journal)
    return _client(options, journal, options.agent)


async def _fleet(options: Options, journal: Journal) -> AgentRouter:
    try:
        from jupyterhub_gpu_reclaim.service.clients import kubernetes  # noqa: PLC0415 large
    except ImportError as error:
        what = (
            f"Sessions in pods need more packages ({error.name}):"
            " pip install 'jupyterhub-gpu-reclaim[kubernetes]'."
        )
        raise Refused(Reason.SETTING_INVALID, what=what) from None
    clock = SystemClock()
    api = await kubernetes.Api.open(options.kubeconfig)
    namespace = options.namespace or kubernetes.own_namespace()
    fleet = AgentRouter(
        api,
        sessions=Informer(api, clock, namespace=namespace, selector=INCARNATION),
        agents=Agents(
            Informer(
                api,
                clock,
                namespace=options.agent_namespace or namespace,
                selector=AGENT_SELECTOR,
            ),
            # by the one name that all agents' certificates have
            lambda ip: _client(
                options, journal, f"https://{AGENT_NAME}:{options.agent_port}", ip
            ),
        ),
        node_labels=options.gpu_node_labels,
        heeds=options.drain_on,
    )
    fleet.start()
    return fleet


def _client(
    options: Options, journal: Journal, address: str, ip: str = ""
) -> AgentClient:
    token, ca_file = Path(options.agent_token_file), options.agent_ca_file
    return AgentClient(address, token, journal=journal, ca_file=ca_file, at=ip)

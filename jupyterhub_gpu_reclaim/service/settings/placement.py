"""Chooses the ``Agent``: the machine's one agent, or the router of a cluster.

If sessions are processes of this machine, nothing of Kubernetes is imported.
"""

from __future__ import annotations

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
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.service.clients.agent_router import AnyAgent
    from jupyterhub_gpu_reclaim.service.settings.options import Options

    LetGo = Callable[[], Awaitable[None]]


#: Labels of the agents' pods, as the chart and the manifests set them.
AGENT_SELECTOR = "app.kubernetes.io/name=gpu-reclaim-agent"
#: The name in the certificate of every agent of a cluster, whatever its address is.
AGENT_NAME = "gpu-reclaim-agent"


async def agent_of(
    options: Options, token: Path, journal: Journal
) -> tuple[AnyAgent, LetGo]:
    """The agent, asked in that journal's term, and a function that disconnects.

    Raises:
        Refused: there is no way to the API server, or packages are missing.
    """
    if options.placement == "kubernetes":
        return await _fleet(options, token, journal)
    agent = AgentClient(
        options.agent, token, journal=journal, ca_file=options.agent_ca_file
    )

    async def let_go() -> None:
        agent.close()

    return agent, let_go


async def _fleet(
    options: Options, token: Path, journal: Journal
) -> tuple[AgentRouter, LetGo]:
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
            lambda ip: _connect(options, token, journal, ip),
        ),
        node_labels=options.gpu_node_labels,
        heeds=options.drain_on,
    )
    fleet.start()

    async def let_go() -> None:
        await fleet.stop()
        await api.close()

    return fleet, let_go


def _connect(options: Options, token: Path, journal: Journal, ip: str) -> AgentClient:
    """The agent there, by the one name that all agents' certificates have."""
    address = f"https://{AGENT_NAME}:{options.agent_port}"
    ca_file = options.agent_ca_file
    return AgentClient(address, token, journal=journal, ca_file=ca_file, at=ip)

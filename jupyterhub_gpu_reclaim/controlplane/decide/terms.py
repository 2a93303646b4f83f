"""Per-session policy: which rules hold for a session now.

It makes no requests: groups and options come with the Hub's other answers, labels with
the pods that are watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.policy.terms import About

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Told
    from jupyterhub_gpu_reclaim.policy.rules import Rules
    from jupyterhub_gpu_reclaim.policy.terms import Terms


class TermsNow:
    """Applies the rules.

    Args:
        rules: the administrator's.
        hub: what it has said of users and servers.
        agent: knows the labels of pods; outside of Kubernetes there are none.
    """

    def __init__(self, rules: Rules, hub: Told, agent: Agent) -> None:
        self._rules = rules
        self._hub = hub
        self._agent = agent

    def __call__(self, key: SessionKey) -> Terms:
        """What holds for that session."""
        about = About(
            key=key,
            groups=self._hub.groups(key.user),
            options=self._hub.options(key),
            labels=self._agent.labels(key),
        )
        return self._rules.terms(about)

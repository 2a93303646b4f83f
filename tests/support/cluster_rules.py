"""What the service may ask of the API server, and why: its role in the chart."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A line of the service's role, in the core API group.

    ``scope`` is ``sessions`` (the namespace of the users' pods), ``agents`` (that of
    the agents) or ``cluster``.
    """

    resource: str
    verbs: tuple[str, ...]
    scope: str
    why: str


RULES = (
    Rule("pods", ("list", "watch"), "sessions", "which session runs on which node"),
    Rule("pods", ("delete",), "sessions", "remove the pod of a suspended session"),
    Rule("pods", ("list", "watch"), "agents", "find the agent of a session's node"),
    Rule("nodes", ("get",), "cluster", "its GPU's model; whether it is about to go"),
)

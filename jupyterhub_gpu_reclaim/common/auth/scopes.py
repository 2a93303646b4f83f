"""The Hub scopes that the service and its users need, with reasons.

``hub.config.configure`` makes the Hub's roles of them. It imports nothing else of ours,
so that a ``jupyterhub_config.py`` can load it first.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Name of the service at the Hub, and so the end of its URL.
SERVICE_NAME = "gpu-reclaim"

#: Variable with the service's settings, as words of a command line in JSON: some of
#: them are secrets, and every user of a machine can read a command line.
OPTIONS = "GPU_RECLAIM_OPTIONS"

#: Custom scope: see and steer all users' sessions.
MANAGE = "custom:gpu-reclaim:manage"

#: The Hub's own scope to stop all servers. Its administrators have it, and so
#: they manage sessions, too: no role of the Hub's own can have a custom scope.
STOPS_ALL = "delete:servers"

#: The Hub's own scope for scraping metrics; it opens our ``/metrics`` too.
METRICS = "read:metrics"

#: ``c.JupyterHub.custom_scopes``: scopes of ours that the Hub has to know.
CUSTOM_SCOPES: dict[str, dict[str, str]] = {
    MANAGE: {
        "description": "See, suspend, resume and delete all sessions.",
    },
}


@dataclass(frozen=True)
class Scope:
    """One scope of the Hub, why it is needed, and what breaks without it."""

    name: str
    reason: str
    without: str


#: What the service does at the Hub, and nothing else: it never creates, renames or
#: deletes users, reads no tokens and no authentication state, and enters no server.
SERVICE_SCOPES: tuple[Scope, ...] = (
    Scope(
        "list:users",
        "To find every server at the Hub, also those whose agent is silent.",
        "A session could not be settled after a restart of the service.",
    ),
    Scope(
        "read:users:groups",
        "To tell which of the administrator's rules (`Rules.rules`) hold for a user.",
        "Where a rule names a group, no session could be suspended automatically.",
    ),
    Scope(
        "read:users",
        "To know since when a user has their name: what a former user of the same name"
        " did is not shown to them, and the passes of that user's tabs are void.",
        "Users would see no history, and open tabs no state of their session.",
    ),
    Scope(
        "servers",
        "To see whether a server runs, to bring a suspended session back when its user"
        " presses Resume, and to tell the Hub that a saved session's server has"
        " stopped; removing one for ever is never asked for.",
        "No session could be suspended: the Hub's view would not be known.",
    ),
)

#: Scopes of ordinary users: to open the page and steer their own sessions.
USER_SCOPES: tuple[Scope, ...] = (
    Scope(
        f"access:services!service={SERVICE_NAME}",
        "To open the service's page and API; it shows the user's own sessions only.",
        "Users could still resume by visiting their server, but see no reasons.",
    ),
)

#: Scopes of managers: each of them is enough.
MANAGER_SCOPES: tuple[Scope, ...] = (
    Scope(
        STOPS_ALL,
        "The Hub's administrators have it: they see why sessions are kept, and suspend"
        " or resume those of others.",
        "The next one is enough.",
    ),
    Scope(
        MANAGE,
        "For anyone else that a role of yours (`c.JupyterHub.load_roles`) names.",
        "People who are not administrators of the Hub see their own sessions only.",
    ),
)


def names(scopes: tuple[Scope, ...]) -> list[str]:
    return [scope.name for scope in scopes]

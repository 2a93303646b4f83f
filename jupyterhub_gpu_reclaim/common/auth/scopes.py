"""The Hub scopes that the service and its users need.

``hub.config.configure`` makes the Hub's roles of them; ``docs/reference/scopes.md``
says what each is for.
"""

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


#: What the service does at the Hub, and nothing else: it never creates, renames or
#: deletes users, reads no tokens and no authentication state, and enters no server.
SERVICE_SCOPES = ("list:users", "read:users:groups", "read:users", "servers")

#: Scopes of ordinary users: to open the page and steer their own sessions.
USER_SCOPES = (f"access:services!service={SERVICE_NAME}",)

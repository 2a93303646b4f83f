"""Kinds of messages to a Jupyter kernel, by who sends them.

The kinds are Jupyter's ("Messaging in Jupyter", jupyter-client.readthedocs.io), and
ipykernel's ``usage_request``.
"""

from __future__ import annotations

from typing import Final

#: What pages and their extensions ask by themselves: when they are opened or connect
#: again, or every few seconds for as long as they are open.
QUIET_REQUESTS: Final = frozenset(
    {"comm_info_request", "history_request", "kernel_info_request", "usage_request"}
)

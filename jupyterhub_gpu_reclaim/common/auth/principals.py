"""The acting person or program, as a text that no user name can imitate.

A user's name is free: "service monitor" or our own name are names like any other. So a
:data:`Principal` is made only here; journal, event log and pages have its text.
"""

from __future__ import annotations

from typing import NewType

#: Actor of a change: a user, a service of the Hub, or this service by itself.
Principal = NewType("Principal", str)

#: This service, by itself.
OURSELVES = Principal("gpu-reclaim")
_SERVICE = "service "
_USER = "user "


def of_user(name: str) -> Principal:
    """A user's name; one that looks like another kind of principal is marked."""
    another = name == OURSELVES or name.startswith((_SERVICE, _USER))
    return Principal(_USER + name if another else name)


def of_service(name: str) -> Principal:
    return Principal(_SERVICE + name)

"""Gives the managers' role to the people and groups that ``configure`` names.

JupyterHub's ``load_roles`` could do it, but then a name is an account that has to be
made: the Hub does not start where the authenticator rules the roles, where its users
are those of the system and one is missing, or where a name does not fit. So the role
has no members in the configuration. Those who have an account get it when the Hub
starts, and those who come later at their login.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jupyterhub import orm

from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The role of those who may see and steer all sessions.
ROLE = f"{SERVICE_NAME}-admin"
#: Variable of the service with the names: a Hub's configuration has no place for them.
VARIABLE = "GPU_RECLAIM_MANAGERS"


@dataclass(frozen=True)
class Managers:
    """The users and groups that may steer all sessions."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @classmethod
    def of(cls, services: Iterable[Mapping[str, Any]]) -> Managers:
        """Read the managers that ``configure`` has written into our service."""
        for service in services:
            text = (service.get("environment") or {}).get(VARIABLE)
            if service.get("name") == SERVICE_NAME and text:
                written = json.loads(text)
                return cls(frozenset(written["users"]), frozenset(written["groups"]))
        return cls()

    def written(self) -> dict[str, str]:
        """The managers as a variable of the service."""
        members = {"users": sorted(self.users), "groups": sorted(self.groups)}
        return {VARIABLE: json.dumps(members)}

    def names(self, authenticator: Any) -> frozenset[str]:
        """The users as the authenticator spells them, its own administrators included.

        A name that it would let nobody have is left out.
        """
        spelled = {_spelled(authenticator, name) for name in self.users} - {""}
        return frozenset(spelled | set(authenticator.admin_users))

    def unfit(self, authenticator: Any) -> list[str]:
        """Users whom the authenticator would let in under no name."""
        return sorted(n for n in self.users if not _spelled(authenticator, n))


def appoint_all(hub: Any) -> None:
    """Give the role to exactly the managers; one without an account gets it at login.

    Args:
        hub: a ``JupyterHub`` whose users and roles are loaded.
    """
    role = orm.Role.find(hub.db, name=ROLE)
    if role is None:
        return
    managers = Managers.of(hub.services)
    names = managers.names(hub.authenticator)
    users = orm.User
    role.users = hub.db.query(users).filter(users.name.in_(names)).all()
    role.groups = [_group(hub.db, name) for name in sorted(managers.groups)]
    hub.db.commit()


def appoint(db: Any, user: Any, names: frozenset[str]) -> None:
    """Give the role to a user who has just logged in, if they are one of those."""
    role = orm.Role.find(db, name=ROLE) if user.name in names else None
    if role is not None and role not in user.orm_user.roles:
        user.orm_user.roles.append(role)
        db.commit()


def _spelled(authenticator: Any, name: str) -> str:
    """The account's name of a user; empty: the authenticator takes none like it."""
    try:
        spelled = authenticator.normalize_username(name)
        return str(spelled) if authenticator.validate_username(spelled) else ""
    except Exception:  # noqa: BLE001 - anybody's; PAM's raises where nobody has the name
        return ""


def _group(db: Any, name: str) -> orm.Group:
    group = orm.Group.find(db, name)
    if group is None:
        group = orm.Group(name=name)
        db.add(group)
    return group

"""A session's login in the Hub's database: API token, OAuth client, state.

JupyterHub makes a new token at every start and does not delete it if the old one is
used
again or the start fails (traps T3, T5, T7). This module finds tokens by their database
id, so that no token has to be remembered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jupyterhub import orm
from jupyterhub.utils import compare_token
from sqlalchemy import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A token as JupyterHub makes it (``jupyterhub.utils.new_token``).
_GENERATED = re.compile(r"[0-9a-f]{32}")


def session_of(spawner: Any) -> Any:
    """The Hub's database session."""
    return inspect(spawner.orm_spawner).session


def save_state(spawner: Any) -> None:
    """Write ``get_state()`` to the database now, not when the Hub next does so."""
    if spawner.orm_spawner is None:
        return
    spawner.orm_spawner.state = spawner.get_state()
    session_of(spawner).commit()


def account(spawner: Any) -> str:
    """Which account of the Hub this spawner's user is, through any change of names.

    A number alone would not do: databases use those of deleted rows again.
    """
    user = spawner.user.orm_user
    return f"{user.id}.{user.created:%Y%m%dT%H%M%S%f}" if user.created else ""


def token_id(spawner: Any, token: str) -> int:
    """The database id of a valid token of this spawner's user; 0: there is none."""
    if not token:
        return 0
    found = orm.APIToken.find(session_of(spawner), token)
    if found is None or found.user is not spawner.user.orm_user:
        return 0
    return int(found.id)


def renew(spawner: Any, token: str, minted: str) -> int:
    """Make an old token valid again, with the rights of the start's new one.

    The row of the new token takes the old one's value, so that nothing is left over.

    Returns:
        its database id; 0 if it was not made by a Hub or belongs to another user: what
        a
        session says its token is, is only its user's claim.
    """
    session = session_of(spawner)
    if not _GENERATED.fullmatch(token) or orm.APIToken.find(session, token) is not None:
        return 0
    number = token_id(spawner, minted)
    if number:
        session.get(orm.APIToken, number).token = token
        session.commit()
    return number


def hash_of(spawner: Any, number: int) -> str:
    """The salted hash of a token of this spawner's user; empty: there is none."""
    found = session_of(spawner).get(orm.APIToken, number) if number else None
    if found is None or found.user is not spawner.user.orm_user:
        return ""
    return str(found.hashed)


def others(token: str, hashes: Iterable[str]) -> tuple[str, ...]:
    """The hashes that are not of that token."""
    return tuple(each for each in hashes if not compare_token(each, token))


def delete_token(spawner: Any, number: int) -> None:
    """Delete a token of this spawner's user by its id; a missing one is fine."""
    session = session_of(spawner)
    found = session.get(orm.APIToken, number) if number else None
    if found is not None and found.user is spawner.user.orm_user:
        session.delete(found)
        session.commit()


class ClientRepair:
    """What the Hub's second ``add_client`` wipes, remembered before it does (T3)."""

    def __init__(self, allowed_scopes: list[str], description: str) -> None:
        self.allowed_scopes = allowed_scopes
        self.description = description

    @classmethod
    async def remember(cls, spawner: Any) -> ClientRepair:
        """Before the start: note what the OAuth client should be allowed."""
        client = spawner.orm_spawner.oauth_client
        return cls(
            await spawner._get_oauth_client_allowed_scopes(),  # noqa: SLF001 - the Hub's own; no public one
            client.description if client is not None else "",
        )

    def apply(self, spawner: Any) -> None:
        """After the start: put it back."""
        client = spawner.orm_spawner.oauth_client
        if client is None:
            return
        client.allowed_scopes = self.allowed_scopes
        client.description = client.description or self.description
        session_of(spawner).commit()

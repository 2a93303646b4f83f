"""A session's login in the Hub's database: API token, OAuth client, state.

JupyterHub makes a new token at every start and does not delete it if the old one is
used again or the start fails (traps T3, T5, T7). Tokens are found by their database id,
so none has to be remembered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jupyterhub import orm
from jupyterhub.utils import compare_token
from sqlalchemy import inspect, select

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A token as JupyterHub makes it (``jupyterhub.utils.new_token``).
_GENERATED = re.compile(r"[0-9a-f]{32}")


class Logins:
    """The rows of one server in the Hub's database."""

    def __init__(self, spawner: Any) -> None:
        self._spawner = spawner

    @property
    def _database(self) -> Any:
        return inspect(self._spawner.orm_spawner).session

    def save_state(self) -> None:
        """Write ``get_state()`` now, not when the Hub next does so."""
        if self._spawner.orm_spawner is None:
            return
        self._spawner.orm_spawner.state = self._spawner.get_state()
        self._database.commit()

    def account(self) -> str:
        """The account of the user at the Hub, the same through any change of names.

        A number alone would not do: databases reuse those of deleted rows. The time is
        read from the database: MySQL and MariaDB keep whole seconds, while the Hub that
        made the account has more of it in memory until it is restarted.
        """
        user = self._spawner.user.orm_user
        stored = select(orm.User.created).where(orm.User.id == user.id)
        made = inspect(user).session.scalar(stored)
        return f"{user.id}." + (f"{made:%Y%m%dT%H%M%S%f}" if made else "")

    def token_id(self, token: str) -> int:
        """The database id of a valid token of this user; 0: there is none."""
        found = orm.APIToken.find(self._database, token) if token else None
        return int(found.id) if found is not None and self._is_ours(found) else 0

    def renew(self, token: str, minted: str) -> int:
        """Make an old token valid again, with the rights of the start's new one.

        The row of the new token takes the old one's value, so that none is left over.

        Returns:
            its database id; 0 if no Hub made it or it belongs to another user: a
            session's word about its token is only its user's claim.
        """
        known = _GENERATED.fullmatch(token) and not orm.APIToken.find(
            self._database, token
        )
        number = self.token_id(minted) if known else 0
        if number:
            self._database.get(orm.APIToken, number).token = token
            self._database.commit()
        return number

    def take_scopes(self, number: int, minted: str) -> None:
        """Let an old token do what the start's new one may: roles change meanwhile."""
        old, new = self._token(number), self._token(self.token_id(minted))
        if old is not None and new is not None and old.scopes != new.scopes:
            old.scopes = list(new.scopes)
            self._database.commit()

    def set_options(self, options: dict[str, Any]) -> None:
        self._spawner.user_options = dict(options)
        self._spawner.orm_spawner.user_options = dict(options)

    def hash_of(self, number: int) -> str:
        """The salted hash of a token of this user; empty if there is none."""
        found = self._token(number)
        return "" if found is None else str(found.hashed)

    def delete(self, number: int) -> None:
        found = self._token(number)
        if found is not None:
            self._database.delete(found)
            self._database.commit()

    def _token(self, number: int) -> Any:
        found = self._database.get(orm.APIToken, number) if number else None
        return found if found is not None and self._is_ours(found) else None

    def _is_ours(self, token: orm.APIToken) -> bool:
        return bool(token.user is self._spawner.user.orm_user)


def others(token: str, hashes: Iterable[str]) -> tuple[str, ...]:
    return tuple(each for each in hashes if not compare_token(each, token))


class ClientRepair:
    """The settings of a client that the Hub's second ``add_client`` wipes (T3)."""

    def __init__(self, allowed_scopes: list[str], description: str) -> None:
        self.allowed_scopes = allowed_scopes
        self.description = description

    @classmethod
    async def remember(cls, spawner: Any) -> ClientRepair:
        """Note, before the start, what the OAuth client should be allowed."""
        client = spawner.orm_spawner.oauth_client
        return cls(
            await spawner._get_oauth_client_allowed_scopes(),  # noqa: SLF001 - the Hub's own; no public one
            client.description if client is not None else "",
        )

    def apply(self, spawner: Any) -> None:
        client = spawner.orm_spawner.oauth_client
        if client is None:
            return
        client.allowed_scopes = self.allowed_scopes
        client.description = client.description or self.description
        inspect(spawner.orm_spawner).session.commit()

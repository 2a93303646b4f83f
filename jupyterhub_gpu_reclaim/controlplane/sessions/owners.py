"""Which account of the Hub a session belongs to, so that names inherit nothing.

The Hub knows accounts, everything here knows names. The spawner tells the account with
each start, and the session's row keeps it. If a name comes with another account, it
belongs to another person now, or the Hub has lost its database and it is the same
person; the two cannot be told apart here. So the former account's checkpoints are
neither brought back nor deleted until a person decides. If the user chooses "start
fresh", they are kept, hidden from that user, as long as others that are set aside. If
an administrator resumes the session, it belongs to whoever has the name. What runs is
neither adopted nor ended: an administrator lets the new account in, or suspends it.

A journal that was lost knows no account. Then the manifests say whose they are. Older
agents have written none: such a checkpoint belongs to the account that the Hub
remembers it of, and to nobody else without an administrator's word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import expiry
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import HIDDEN, Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Placement,
        SessionKey,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: In place of an account: the next one of that name that starts the server.
_WHOEVER_COMES = "*"
#: What the audit says of a former account's sessions.
_NEW = "The user's name belongs to another account of the Hub now."
_ANOTHER = (
    "another account of that name has started it, of this Hub before its database was"
    " replaced, or of a user who was deleted since"
)


def account_of(sessions: Sessions, row: SessionRow) -> str:
    """The account it belongs to, by its row or manifest; empty: nobody knows."""
    info = _info(sessions, row.checkpoint)
    return row.account or (info.account if info else "")


def check(sessions: Sessions, placement: Placement, settings: Settings) -> None:
    """Check, before a start, whose session it is; repeat it if more was found.

    Raises:
        Refused: ``former_account``: a person has to choose first;
            ``not_adopted``: the former account's session runs.
        StoreError: the journal does not answer.
    """
    key, owner, own = placement.key, placement.owner, placement.checkpoint
    if not owner:
        return  # a spawner that does not report it
    row, info = sessions.row(key), _info(sessions, own)
    # The Hub remembers it of that account: the journal is older than that.
    its = info is None or info.account in {"", owner}
    its_own = row.phase is Phase.SUSPENDED and own == row.checkpoint and its
    if not _is_anothers(sessions, row, placement):
        if row.claimed:
            sessions.update(key, claimed=False)
    elif its_own or row.phase is Phase.STOPPED:
        hand_over(sessions, key, settings, own)
    else:
        sessions.update(key, claimed=True)
        spare(sessions, key)
        raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
    known = sessions.journal.checkpoint(own)
    if known and known.key == key and known.keeping is Keeping.FORMER and its:
        # Set aside without limit: the start brings it back.
        sessions.journal.keep(expiry.kept(sessions, own, Keeping.ASIDE))


def refuse_anothers(tree: Tree, placement: Placement) -> None:
    """Check that what runs is that account's; older spawners have noted none.

    An administrator's order to renew its login says that it is.

    Raises:
        Refused: ``not_adopted``.
    """
    if placement.owner and tree.account not in {"", placement.owner}:
        raise Refused(Reason.NOT_ADOPTED, user=placement.key.user, why=_ANOTHER)


def spare(sessions: Sessions, key: SessionKey) -> None:
    """Check that no former account's session runs, which may not be ended.

    Raises:
        Refused: ``not_adopted``: it runs; its page says so.
    """
    if sessions.row(key).phase in LIVE:
        running = Refused(Reason.NOT_ADOPTED, user=key.user, why=_ANOTHER)
        sessions.update(key, failure=codec.failure_of(running))
        raise running


def note(sessions: Sessions, placement: Placement, settings: Settings) -> None:
    """The server belongs to the account that starts it from now on.

    Raises:
        StoreError: it could not be written.
    """
    key, owner = placement.key, placement.owner
    row = sessions.row(key)
    if not owner or row.account == owner:
        return
    if row.account != _WHOEVER_COMES:
        known = {"", owner}
        rows = sessions.journal.checkpoints(key)
        former = [row for row in rows if row.info and row.info.account not in known]
        _hide(sessions, former, settings)
    if sessions.journal.session(key):  # else it has a row when it runs
        sessions.update(key, account=owner, claimed=False)


def trust(sessions: Sessions, key: SessionKey) -> None:
    """A manager's word: what is there belongs to whoever has the name.

    That settles whose it is where another account asks, or where nobody knows.

    Raises:
        StoreError: it could not be written.
    """
    row = sessions.row(key)
    if row.account and not row.claimed:
        return
    # A program may have deleted the former one's user.
    kept = [
        msgspec.structs.replace(each, expires=None)
        for each in sessions.journal.checkpoints(key)
        if each.keeping is Keeping.CURRENT
    ]
    sessions.update(key, checkpoints=kept, account=_WHOEVER_COMES, claimed=False)


def hand_over(
    sessions: Sessions, key: SessionKey, settings: Settings, own: str = ""
) -> None:
    """Give the name to whoever comes, with nothing of the former account's.

    Its checkpoints are kept for a while, hidden, and what still runs is ended.

    Args:
        sessions: the rows.
        key: the server.
        settings: for how long its checkpoints are kept.
        own: a checkpoint that is not the former account's; the journal may not know it.

    Raises:
        StoreError: it could not be written; it has to be repeated.
    """
    _hide(sessions, sessions.journal.checkpoints(key), settings)
    keeps = schema.keeps
    sessions.journal.write(keeps.delete().where(schema.of_session(keeps, key)))
    if sessions.deletions is not None and sessions.journal.session(key):
        spared = [own] if own else []
        sessions.deletions.order(key, "new account", _NEW, spared=spared)


def _is_anothers(sessions: Sessions, row: SessionRow, placement: Placement) -> bool:
    account = account_of(sessions, row)
    if account:
        return account not in {placement.owner, _WHOEVER_COMES}
    saved = row.phase not in LIVE and _info(sessions, row.checkpoint) is not None
    return saved and row.checkpoint != placement.checkpoint


def _info(sessions: Sessions, checkpoint: str) -> CheckpointInfo | None:
    row = sessions.journal.checkpoint(checkpoint)
    return None if row is None else row.info


def _hide(sessions: Sessions, rows: list[CheckpointRow], settings: Settings) -> None:
    """Keep them for a while, unseen."""
    sessions.journal.keep(
        each
        for row in rows
        if row.keeping not in HIDDEN
        for each in expiry.kept(sessions, row.id, Keeping.FORMER, settings.set_aside)
    )

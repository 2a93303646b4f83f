"""Retention: what each checkpoint of a session is kept for, and until when.

Pure. It is computed whenever a session's row changes, from that row, from what the
store says of the checkpoints with the last words on them, and from the settings. The
first line that fits counts; a limit in seconds begins where a checkpoint gets to its
line.

=================================  ==========  ========================================
checkpoint                         kept as     until
=================================  ==========  ========================================
an order is to delete it           TO_DELETE   its agent answers
it is to be brought back           WANTED      that is done
current; the session does not run  CURRENT     no limit; of a user whom a program has
                                               deleted: what was said then
set aside by a person              ASIDE       its mark
of another account                 ASIDE       no limit; ``set_aside`` once the session
                                               runs
current; the session runs          SUPERSEDED  ``grace`` after it has answered; a newer
                                               one, if it is its save point or a rule
                                               saves it
left of a suspend that was taken   SUPERSEDED  now
back; the session runs
save point of its line¹, with a    ASIDE       ``set_aside``²
name or of the last few
any other of its line              SUPERSEDED  ``grace``²
any other                          ASIDE       ``set_aside``²
=================================  ==========  ========================================

¹ what its current checkpoint, what runs, or what was set aside came from, with the
save points of those. ² without limit while its user is asked, or what it is suspended
in cannot come back.

What the session is in is not set aside any more, and what it runs from it has gone on
from: these words the store is told (``marks.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.models import GoneOn, Phase
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, Keeping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.settings import Settings


def newest(infos: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    return max(infos, key=lambda info: (info.stamp, info.id), default=None)


def highest(row: SessionRow, infos: Iterable[CheckpointInfo]) -> dict[str, Any]:
    return {"stamp": max([row.stamp, *(info.stamp for info in infos)])}


def is_anothers(row: SessionRow, info: CheckpointInfo) -> bool:
    mine = _is_same(row, info) or row.account in {"", info.account}
    return info.account != "" and not mine


def account(row: SessionRow, info: CheckpointInfo) -> str:
    return row.account if _is_same(row, info) else info.account or row.account


def is_hidden(row: SessionRow, checkpoint: CheckpointRow) -> bool:
    """Whether a session's user can neither see nor bring back a checkpoint."""
    left = row.claimed and row.phase is Phase.STOPPED  # by a former account
    another = is_anothers(row, checkpoint.info)
    return left or another or checkpoint.keeping is Keeping.TO_DELETE


def chosen_since(
    row: SessionRow, kept: Iterable[CheckpointRow], saved: Collection[CheckpointInfo]
) -> CheckpointRow | None:
    """Return what a person has brought back, as the store says, and no journal.

    A journal that was put back has missed a newer one, which was set aside since; and
    what it has set aside itself is not, in the store.
    """
    if not (row.phase.live or row.phase in {Phase.STOPPED, Phase.SUSPENDING}):
        return None
    there = {info.id for info in saved if info.aside is None}
    there -= {info.parent for info in saved}
    aside = (each for each in kept if each.info.aside is not None)
    shown = (each for each in aside if not is_hidden(row, each) and each.id in there)
    return max(shown, key=lambda each: (each.stamp, each.id), default=None)


def _is_same(row: SessionRow, info: CheckpointInfo) -> bool:
    return info.session == row.session != ""


def is_of(info: CheckpointInfo, ids: Collection[str]) -> bool:
    return bool({info.id, info.session, info.incarnation} & {*ids} - {""})


_RUNS = {*LIVE, Phase.SUSPENDING}


class Terms(NamedTuple):
    settings: Settings
    now: float
    ruled: bool = False  #: whether a rule saves the session while it runs


def kept(
    session: SessionRow, rows: Collection[CheckpointRow], terms: Terms
) -> list[CheckpointRow]:
    line = _line(session, rows)
    spare = _spare(rows, terms.settings.save_points)
    return [
        _by_word(session, row, terms)
        or _of_running(session, row, terms)
        or _of_others(session, row, terms, set() if row.id in spare else line)
        for row in rows
    ]


def _by_word(
    session: SessionRow, row: CheckpointRow, terms: Terms
) -> CheckpointRow | None:
    aside, runs, until = row.info.aside, session.phase in _RUNS, None
    if row.keeping is Keeping.TO_DELETE:
        return row.kept(Keeping.TO_DELETE, 0.0)
    if row.id == session.bring_back:
        return row.kept(Keeping.WANTED)
    if row.id == session.checkpoint and not runs:
        if session.claimed and row.keeping is Keeping.CURRENT:
            until = row.expires
        return row.kept(Keeping.CURRENT, until).said(aside=None)
    if aside is not None:
        return row.kept(Keeping.ASIDE, aside.until)
    if not is_anothers(session, row.info):
        return None
    if runs:
        return _begun(row, Keeping.ASIDE, terms.now + terms.settings.set_aside)
    return row.kept(Keeping.ASIDE)


def _of_running(
    session: SessionRow, row: CheckpointRow, terms: Terms
) -> CheckpointRow | None:
    own, until = row.is_of(session.incarnation), None
    if own and not row.info.goes_on and session.phase in LIVE:
        return _begun(row, Keeping.SUPERSEDED, terms.now)
    if row.id != session.checkpoint or session.phase not in _RUNS:
        return None
    if own:
        return row.kept(Keeping.SUPERSEDED)
    if not terms.ruled and session.resumed_at is not None:
        until = session.resumed_at + terms.settings.grace
    gone_on = row.info.gone_on
    if gone_on is None or gone_on.incarnation != session.incarnation:
        gone_on = GoneOn(incarnation=session.incarnation, since=terms.now)
    return row.kept(Keeping.SUPERSEDED, until).said(gone_on=gone_on)


def _of_others(
    session: SessionRow, row: CheckpointRow, terms: Terms, line: set[str]
) -> CheckpointRow:
    keeping, seconds = Keeping.ASIDE, terms.settings.set_aside
    if {row.id, row.info.incarnation} & line:
        keeping, seconds = Keeping.SUPERSEDED, terms.settings.grace
    if session.phase is Phase.SUSPENDED and session.asks:
        return row.kept(keeping)
    return _begun(row, keeping, terms.now + seconds)


def _begun(row: CheckpointRow, keeping: Keeping, until: float) -> CheckpointRow:
    """Keep it until then, or as long as was said when that began."""
    if row.keeping is keeping and row.expires is not None:
        until = row.expires
    return row.kept(keeping, until)


def is_unanswered(session: SessionRow, current: CheckpointRow | None) -> bool:
    """Whether nobody has said that a session has answered since it came back."""
    back = current is not None and not current.is_of(session.incarnation)
    return back and session.phase in LIVE and session.resumed_at is None


def back_again(session: SessionRow, rows: Iterable[CheckpointRow]) -> str:
    """Return what a session goes back to, now that its suspend is given up, or ""."""
    shown = (row for row in rows if not is_hidden(session, row))
    infos = {row.id: row.info for row in shown}
    given_up = infos.pop(session.checkpoint, None)
    parent = given_up.parent if given_up is not None else ""
    own = (
        info
        for info in infos.values()
        if info.id == parent or info.incarnation == session.incarnation
    )
    back = newest(own)
    return back.id if back is not None else ""


def _line(session: SessionRow, rows: Iterable[CheckpointRow]) -> set[str]:
    """What a session came from: checkpoints, and incarnations that had save points."""
    infos = {row.id: row.info for row in rows}
    line: set[str] = set()
    next_ones = [info.parent for info in infos.values() if info.aside is not None]
    if session.phase is not Phase.STOPPED:
        line.add(session.incarnation)
        own = (i for i in infos.values() if i.incarnation == session.incarnation != "")
        next_ones += [session.checkpoint, *(info.parent for info in own)]
    while next_ones:
        name = next_ones.pop()
        info = infos.get(name)
        line.add(name)
        if info is not None and info.parent not in line:
            line.add(info.incarnation)
            next_ones.append(info.parent)
    return line - {""}


def _spare(rows: Iterable[CheckpointRow], most: int) -> set[str]:
    """Save points kept beside a newer one: named ones, and the last of each line."""
    infos = sorted((row.info for row in rows), key=lambda info: (info.stamp, info.id))
    found = {info.id for info in infos if info.name}
    for incarnation in {info.incarnation for info in infos}:
        *older, _ = (info for info in infos if info.incarnation == incarnation)
        plain = [info.id for info in older if info.goes_on and not info.name]
        found |= set(plain[max(0, len(plain) + 1 - most) :])
    return found

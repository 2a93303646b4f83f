"""Notes: a moment or a number of each subject, of one kind each.

They outlive a restart of the service, and belong to no session's row: what is noted may
be of a session that has gone, of a program, or of the journal itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.controlplane.journal import schema

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal


class NoteKind(StrEnum):
    """What is noted; in parentheses, the subject."""

    READER = "reader"  #: number of the last line that a reader of the audit has (name)
    LOGIN_RENEWAL = "login renewal"  #: until when such an order holds (path)
    CULLER = "culler"  #: when it last ended a session that was not saved (its name)
    FILES_BACK = "files back"  #: when its user said so, for one return (checkpoint)
    JOB = "job"  #: when it is due, for which its session is resumed (path)
    DELETION = "deletion"  #: when an order to delete was taken (the order's name)
    EXPIRY = "expiry"  #: when a deletion was announced (checkpoint)
    TAB_KEY = "tab key"  #: time of the one that counts; negative: later ones (path)
    NO_TAB_KEYS = "no tab keys"  #: time up to which they are revoked (path)


def read(journal: Journal, kind: NoteKind, subject: str = "") -> float | None:
    return read_all(journal, kind, subject).get(subject)


def read_all(
    journal: Journal, kind: NoteKind, subject: str | None = None
) -> dict[str, float]:
    table = schema.notes
    query = table.select().where(table.c.kind == kind.value)
    if subject is not None:
        query = query.where(table.c.subject == subject)
    return {row["subject"]: row["value"] for row in journal.read(query)}


def read_before(journal: Journal, kind: NoteKind, value: float) -> list[str]:
    table = schema.notes
    query = table.select().where(table.c.kind == kind.value, table.c.value < value)
    return [row["subject"] for row in journal.read(query)]


def note(kind: NoteKind, subject: str, value: float) -> list[Any]:
    row = {"kind": kind.value, "subject": subject, "value": value}
    return [*forget(kind, subject), schema.notes.insert().values(**row)]


def forget(kind: NoteKind, *subjects: str) -> list[Any]:
    table = schema.notes
    mine = table.c.kind == kind.value
    return [table.delete().where(mine, table.c.subject == each) for each in subjects]

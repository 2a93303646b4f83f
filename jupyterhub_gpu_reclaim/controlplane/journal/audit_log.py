"""Reads the audit log: forward for programs, backward for people.

How far a reader is stands in the journal, so that a restart of the service loses
nothing and repeats little. Nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from jupyterhub_gpu_reclaim.controlplane.journal import notes, schema
from jupyterhub_gpu_reclaim.controlplane.journal.notes import NoteKind

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.model.rows import AuditRow


class NumberedLine(NamedTuple):
    id: int
    line: AuditRow


class AuditReader:
    """A program that reads the audit forward."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal = journal
        self._name = name
        found = notes.read(journal, NoteKind.READER, name)
        if found is None:
            self.done(newest(journal))
        else:
            self._at = int(found)

    def next(self, limit: int = 100) -> list[NumberedLine]:
        return after(self._journal, self._at, limit)

    def done(self, number: int) -> None:
        self._journal.write(*notes.note(NoteKind.READER, self._name, number))
        self._at = number


def newest(journal: Journal) -> int:
    (found,) = journal.read(select(func.max(schema.audit.c.id).label("id")))
    return found["id"] or 0


def after(journal: Journal, number: int, limit: int = 100) -> list[NumberedLine]:
    table = schema.audit
    query = table.select().where(table.c.id > number)
    return _numbered(journal, query.order_by(table.c.id).limit(limit))


def of_user(
    journal: Journal, user: str | None, before: int, limit: int
) -> list[NumberedLine]:
    table = schema.audit
    query = table.select()
    if user is not None:
        query = query.where(table.c.user == user)
    if before:
        query = query.where(table.c.id < before)
    return _numbered(journal, query.order_by(table.c.id.desc()).limit(limit))


def _numbered(journal: Journal, query: Any) -> list[NumberedLine]:
    return [
        NumberedLine(row["id"], schema.audit_row(row)) for row in journal.read(query)
    ]

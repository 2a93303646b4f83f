"""The journal's rows as columns of its tables, and back.

Pure. The tables are those of ``schema.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import and_, bindparam

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Failure, SessionKey
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    AuditRow,
    CheckpointRow,
    SessionRow,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def of(table: Any, key: SessionKey) -> Any:
    """The condition "of that session"."""
    return and_(table.c.user == key.user, table.c.server == key.server)


#: Made once: composing a statement takes longer than running it.
_INSERT = {
    table: table.insert()
    for table in (schema.sessions, schema.checkpoints, schema.audit)
}
_NO_SESSION = schema.sessions.delete().where(
    schema.sessions.c.user == bindparam("its_user"),
    schema.sessions.c.server == bindparam("its_server"),
)
_NO_CHECKPOINT = schema.checkpoints.delete().where(
    schema.checkpoints.c.id == bindparam("its_id")
)


def replace_session(row: SessionRow) -> list[Any]:
    """Statements that write a row whether or not it is there, on any database."""
    mine = {"its_user": row.key.user, "its_server": row.key.server}
    return [
        (_NO_SESSION, mine),
        (_INSERT[schema.sessions], _session_values(row)),
    ]


def replace_checkpoint(row: CheckpointRow) -> list[Any]:
    """The same for a checkpoint."""
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    values["keeping"] = row.keeping.value
    values["info"] = None if row.info is None else codec.encode(row.info).decode()
    values.update(user=key.user, server=key.server)
    return [
        (_NO_CHECKPOINT, {"its_id": row.id}),
        (_INSERT[schema.checkpoints], values),
    ]


def _session_values(row: SessionRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    values.update(user=key.user, server=key.server)
    values["phase"] = row.phase.value
    values["intent"] = row.intent.value
    values["failure"] = (
        None if row.failure is None else codec.encode(row.failure).decode()
    )
    return values


def replace(name: str, value: float) -> list[Any]:
    """The same for an amount."""
    table = schema.amounts
    return [
        table.delete().where(table.c.name == name),
        table.insert().values(name=name, value=value),
    ]


def audit_row(row: Mapping[Any, Any]) -> AuditRow:
    """A line of the audit's table."""
    return AuditRow(
        at=row["at"],
        key=SessionKey(row["user"], row["server"]),
        who=row["who"],
        what=row["what"],
        code=row["code"],
        message=row["message"],
    )


def insert_audit(row: AuditRow) -> Any:
    """The statement that adds a line to the audit."""
    return _INSERT[schema.audit], audit_values(row)


def audit_values(row: AuditRow) -> dict[str, Any]:
    """The columns of a line of the audit."""
    values = msgspec.structs.asdict(row)
    key = values.pop("key")
    return {**values, "user": key.user, "server": key.server}


def session(row: Mapping[str, Any]) -> SessionRow:
    """A session's row again."""
    values = _with_key(row)
    failure = values.pop("failure")
    values["failure"] = codec.decode(failure, Failure) if failure else None
    return msgspec.convert(values, SessionRow, strict=False, from_attributes=True)


def checkpoint(row: Mapping[str, Any]) -> CheckpointRow:
    """A checkpoint's row again."""
    values = _with_key(row)
    info = values.pop("info")
    values["info"] = codec.decode(info, CheckpointInfo) if info else None
    return msgspec.convert(values, CheckpointRow, strict=False, from_attributes=True)


def _with_key(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns, with user and server as one key."""
    values = {str(name): value for name, value in row.items()}
    values["key"] = SessionKey(values.pop("user"), values.pop("server"))
    return values

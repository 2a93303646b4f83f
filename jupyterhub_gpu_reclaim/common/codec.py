"""Values to JSON and back; what does not fit is a ``BadRequest`` naming the field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from jupyterhub_gpu_reclaim.common.decoders import json_decoder
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    ReclaimError,
    RolledBack,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import Failure, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import HIGHEST

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode(data: bytes | str, kind: type[T]) -> T:
    """JSON to a value of that type.

    Raises:
        BadRequest: not JSON, not UTF-8, or it does not fit; the message names the
            field.
    """
    try:
        return json_decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(Reason.INVALID, what=f"Not understood: {error}.") from None


#: Of everything of ours that is kept in a file or in a row of the Hub's database.
VERSION = 1


class _Versioned(Value, frozen=True, kw_only=True):
    version: int = VERSION


def decode_kept(data: bytes | str, kind: type[T], what: str) -> T:
    """As :func:`decode`, of something that is kept and has a version.

    ``what``: its name in errors, such as "The record".

    Raises:
        BadRequest: likewise; ``other_version``: another release has written it.
    """
    check_version(decode(data, _Versioned).version, what)
    return decode(data, kind)


def check_version(version: int, what: str) -> None:
    """Refuse any version but ours.

    Raises:
        BadRequest: ``other_version``.
    """
    if version != VERSION:
        known = VERSION
        raise BadRequest(Reason.OTHER_VERSION, what=what, version=version, known=known)


def failure_of(error: ReclaimError) -> Failure:
    """An error as a value for the wire; the detail stays in the log."""
    return Failure(
        code=error.reason.value,
        message=error.message,
        hint=error.reason.hint,
        retryable=error.retryable,
        term=str(error.facts.get("obeyed", "")),
    )


BY_STATUS: dict[int, type[ReclaimError]] = {
    kind.status: kind for kind in (BadRequest, NotFound, StoreError, Unreachable)
}


def error_of(failure: Failure, kind: type[ReclaimError] = RolledBack) -> ReclaimError:
    """The exception for an error that another part has sent, in its own words."""
    error = kind(Reason.of(failure.code), retryable=failure.retryable)
    known = len(failure.term) <= len(str(HIGHEST)) and failure.term.isdecimal()
    error.facts = {"obeyed": int(failure.term)} if known else {}
    error.message = failure.message
    error.args = (failure.message,)
    return error

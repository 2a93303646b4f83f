"""Translates an object store's errors, without the address, the login or the answer.

obstore's own messages hold whole requests: an address with a signature in it must never
reach a log.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The only parts of an answer that are repeated: a number and a word.
_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
#: The machine's own identity, and what object_store says of a workload's.
_NO_LOGIN = re.compile(r"169\.254\.169\.254|token file|token request")
_NO_PLACE = dict.fromkeys(
    ("NoSuchBucket", "ContainerNotFound"), "its bucket does not exist"
)
_REFUSED = "it refuses the login, or the login may not do this"
_NO_CREATE = "the object store cannot write an object only where none stands"
_OF_STATUS = {"401": "it asks for a login", "403": _REFUSED, "501": _NO_CREATE}
_OF_KIND: dict[type[Exception], str] = {
    NotSupportedError: _NO_CREATE,
    PermissionDeniedError: _REFUSED,
    UnauthenticatedError: _OF_STATUS["401"],
    UnknownConfigurationKeyError: "one of its options is not known",
    ValueError: "one of its options makes no sense",
}
#: Refusals that are about the moment.
_LATER = {"408", "429"}
#: The store's answer, and what obstore itself says of an answer without a byte.
_PAST_END = re.compile(r"status code: 416\b|Wanted range starting at")
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}


class PastTheEnd(StoreError):
    """A range that begins at or behind an object's end."""

    def __init__(self, name: str) -> None:
        super().__init__(Reason.STORE_FAILED, why=f"{name} is shorter than that")


@contextlib.contextmanager
def answers(name: str) -> Iterator[None]:
    """Translate what obstore raises inside.

    Raises:
        PastTheEnd: only of a range that was asked for.
        Unavailable: a later call may succeed.
        StoreError: ``STORE_FULL``, or it will go on failing.
    """
    # ``FileNotFoundError`` and ``AlreadyExistsError`` come through: their meaning
    # depends on the call.
    try:
        yield
    except FileNotFoundError as error:
        if _part(_CODE, error) in _NO_PLACE:
            raise translated(error, name) from None
        raise
    except AlreadyExistsError:
        raise
    except (BaseError, ValueError, OSError) as error:
        # "from None": the cause's text is what must not be logged.
        raise translated(error, name) from None


def translated(error: Exception, name: str) -> StoreError:
    status, word = _part(_STATUS, error), _part(_CODE, error)
    detail = " ".join(
        part for part in (name, type(error).__name__, status, word) if part
    )
    if word in _FULL or status == "507":
        return StoreError(Reason.STORE_FULL, needed="more", free="none", detail=detail)
    if _PAST_END.search(str(error)):
        return PastTheEnd(name)
    if _NO_LOGIN.search(str(error)):
        # Asked for last, where neither options nor environment hold a login.
        return Unavailable("no login for the object store was found", detail=detail)
    kinds = (why for kind, why in _OF_KIND.items() if isinstance(error, kind))
    why = _NO_PLACE.get(word) or next(kinds, None) or _OF_STATUS.get(status)
    if why is not None:
        return StoreError(Reason.STORE_DENIED, why=why, detail=detail)
    if not status:
        return Unavailable("the object store does not answer", detail=detail)
    if status.startswith("4") and status not in _LATER:
        why = f"the object store refuses the request (HTTP {status})"
        return StoreError(Reason.STORE_DENIED, why=why, detail=detail)
    why = f"the object store has a fault (HTTP {status})"
    return Unavailable(why, detail=detail)


def _part(pattern: re.Pattern[str], error: Exception) -> str:
    found = pattern.search(str(error))
    return found[1] if found else ""

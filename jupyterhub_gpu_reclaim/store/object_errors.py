"""An object store's errors in our words, without the address, the login or the answer.

Called by the modules beside it that talk to obstore, whose own messages hold whole
requests: an address with a signature in it must never reach a log.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The only parts of an answer that are repeated: a number and a word.
_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_NO_PLACE = {"NoSuchBucket", "ContainerNotFound"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}


@contextlib.contextmanager
def answers(name: str) -> Iterator[None]:
    """Translate what obstore raises inside.

    ``FileNotFoundError`` and ``AlreadyExistsError`` come through: what they mean
    depends on the call.

    Raises:
        Unavailable: a later call may succeed.
        StoreError: ``STORE_FULL``, or it will go on failing.
    """
    try:
        yield
    except FileNotFoundError as error:
        if _word(error) in _NO_PLACE:
            raise translated(error, name) from None
        raise
    except AlreadyExistsError:
        raise
    except (BaseError, ValueError, OSError) as error:
        # "from None": the cause's text is what must not be logged.
        raise translated(error, name) from None


def translated(error: Exception, name: str) -> StoreError:
    """Our error for one of obstore's."""
    status, word = _status(error), _word(error)
    detail = " ".join(
        part for part in (name, type(error).__name__, status, word) if part
    )
    if word in _FULL or status == "507":
        return StoreError(Reason.STORE_FULL, needed="more", free="none", detail=detail)
    if word in _NO_PLACE:
        why = "its bucket does not exist"
    elif isinstance(error, PermissionDeniedError) or status == "403":
        why = "it refuses the login, or the login may not do this"
    elif isinstance(error, UnauthenticatedError) or status == "401":
        why = "it asks for a login"
    elif isinstance(error, UnknownConfigurationKeyError):
        why = "one of its options is not known"
    elif status and status.startswith("4") and status not in {"408", "429"}:
        why = f"the object store refuses the request (HTTP {status})"
    elif status:
        return Unavailable(
            f"the object store has a fault (HTTP {status})", detail=detail
        )
    else:
        return Unavailable("the object store does not answer", detail=detail)
    return StoreError(Reason.STORE_FAILED, why=why, detail=detail)


def _status(error: Exception) -> str:
    found = _STATUS.search(str(error))
    return found[1] if found else ""


def _word(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""

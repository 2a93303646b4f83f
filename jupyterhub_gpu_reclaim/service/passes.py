"""Passes of open tabs: what a tab shows in place of the login's XSRF token.

The page of a user's server may not have that token, since programs of the user write
such pages, and it opens everything that the visitor may do here. A pass is good for
one session, for what a tab needs, and only beside the login cookie of the session's
own user. Made by ``tab.py``, read by ``routes/base.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tornado.web import create_signed_value, decode_signed_value

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.models import SessionKey

#: The header that a tab sends its pass in.
HEADER = "X-GPU-Reclaim-Tab"
#: A pass ends after so many days; the tab gets the next one by itself.
DAYS = 0.5
#: Stands in what is signed, so that nothing else that is signed here is a pass.
_KIND = "gpu-reclaim-tab"


def made(secret: bytes, key: SessionKey) -> str:
    """A pass for that session."""
    return create_signed_value(secret, _KIND, key.path).decode()


def read(secret: bytes, text: str) -> str | None:
    """The path of the pass's session (``SessionKey.path``), None where it is none."""
    found = decode_signed_value(secret, _KIND, text, max_age_days=DAYS)
    return found.decode() if found else None

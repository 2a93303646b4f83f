"""A store's identity: the object that tells this store from an empty place. Pure.

``FORMAT.md``, identity. It is not a secret: the same id is kept beside the master key,
to find mistakes, not attacks.
"""

from __future__ import annotations

import re
import secrets

from jupyterhub_gpu_reclaim.store.format.index import damaged

#: Far above any of ours.
MAX_BYTES = 1024
_ID = re.compile(r"[0-9a-f]{32}")
_HEAD = "GRSTOID 1\n"


def new_id() -> str:
    return secrets.token_hex(16)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def encode(store: str) -> bytes:
    return f"{_HEAD}{store}\n".encode()


def decode(data: bytes) -> str:
    """The id in the object's bytes.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``.
    """
    store = data.decode("ascii", "replace").removeprefix(_HEAD).strip()
    if not is_id(store) or data != encode(store):
        raise damaged("the store's identity is not what was written")
    return store

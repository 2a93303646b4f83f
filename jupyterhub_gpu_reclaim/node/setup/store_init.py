"""Begins a store with a file of master keys: key, id in the store, id beside the key.

The file gets its name last, when the store has its id. Until then it is kept aside,
with the same keys and the same id: another attempt after a crash goes on with it. So
there is never a key in its place whose store was not begun.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.durable import sync_folder, write_durably
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.identified import (
    IdentifiedBackend,
    StoreAbsent,
    store_at,
)
from jupyterhub_gpu_reclaim.store.format.identity import new_id
from jupyterhub_gpu_reclaim.store.format.keys import (
    STORE_ID,
    key_lines,
    load_keys,
    new_key_line,
)

if TYPE_CHECKING:
    from pathlib import Path

    from jupyterhub_gpu_reclaim.store.backend import Backend


def aside(file: Path) -> Path:
    """Where a file of keys is until its store is begun."""
    return file.with_name(f"{file.name}.begun")


def begin(place: Backend, where: str, file: Path, now: float) -> str:
    """Begin the store of a file of keys, made if it is missing; return the store's id.

    Idempotent, and repeated after a crash. ``where`` is for people.

    Raises:
        StoreAbsent: the place holds another store, or is empty though a store was begun
            with these keys.
        StoreError: place or file cannot be read or written.
    """
    there = file.exists()
    if there:
        keys = load_keys(file=file)
        if keys.store_id:
            IdentifiedBackend(place, keys, where).confirm()
            return keys.store_id
    begun = aside(file)
    try:
        if not begun.exists() or (there and key_lines(begun) != key_lines(file)):
            _refuse_begun(place, where, file)
            day = datetime.fromtimestamp(now, UTC).date().isoformat()
            first = new_key_line(f"{day}-{secrets.token_hex(3)}")
            lines = key_lines(file) if there else first
            write_durably(begun, f"{STORE_ID} {new_id()}\n{lines}".encode())
        keys = load_keys(file=begun)
        IdentifiedBackend(place, keys, where).begin()
        begun.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        why = f"{file}, for its master key, cannot be written: {error.strerror}"
        raise StoreError(Reason.STORE_FAILED, why=why, detail=str(error)) from error
    return keys.store_id


def _refuse_begun(place: Backend, where: str, file: Path) -> None:
    found = store_at(place)
    if not found:
        return
    why = f"{where} holds the store {found}"
    if not file.exists():
        raise StoreAbsent(f"{why}: copy its master key to {file}")
    line = f'the line "{STORE_ID} {found}"'
    raise StoreAbsent(f"{why}. If {file} is its master key, add {line} to that file")

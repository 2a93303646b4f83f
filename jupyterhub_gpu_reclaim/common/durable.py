"""Files that are written whole: a crash leaves the former contents or the new ones."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file, mode 0600: temporary file, fsync, rename, fsync of the folder.

    Raises:
        OSError: it cannot be written; the former contents stay.
    """
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kept_secret(path: Path) -> str:
    """A secret that a file of mode 0600 keeps, made at the first call.

    Raises:
        OSError: it can be neither read nor made.
        ValueError: it holds too little to be one.
    """
    if not path.exists():
        write_durably(path, secrets.token_hex(32).encode() + b"\n")
    text = path.read_text().strip()
    if len(text) < 32:
        raise ValueError(f"{path} holds no secret; remove it, and a new one is made")
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return text

"""Orders to delete a server's sessions, as files, so that none is lost.

JupyterHub reports the deletion of a server or a user only once. So the spawner writes
the order into the service's folder first and then tells the service, which removes the
file when the order is in its journal. Neither an absent service nor a lost answer can
lose it. Both sides run on the Hub's machine.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Annotated

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.bounds import Name
from jupyterhub_gpu_reclaim.common.durable import sync_folder, write_durably
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import SessionKey, Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)

#: Name of the folder inside the service's.
FOLDER = "deletions"
_SUFFIX = ".json"


class Deletion(Value, frozen=True, kw_only=True):
    """Order that the spawner gives when a server was deleted.

    Attributes:
        user: whose server.
        server: its name.
        order: of the file, without its ending; empty: none could be written. A call
            that comes late is known by it: there may be a new server of that name.
        kept_from: the program that has deleted the user. Its word alone is not
            enough: what is suspended is kept for a while. Empty: a person has.
        account: whose server it was (``Placement.owner``); empty: not told.
        sessions: of that server, as far as the Hub knows. A journal that was put back
            may know none of them.
    """

    version: int = codec.VERSION
    user: Name
    server: Name = ""
    order: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z]{0,64}$(?!\n)")] = ""
    kept_from: str = ""
    account: str = ""
    sessions: tuple[str, ...] = ()

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.user, self.server)


def write(folder: Path, deletion: Deletion) -> Path:
    """Write an order, durably, into a subfolder of the service's; named by its file.

    Raises:
        OSError: it cannot be written.
    """
    orders = folder / FOLDER
    orders.mkdir(mode=0o700, exist_ok=True)
    path = orders / f"{uuid.uuid4().hex}{_SUFFIX}"
    write_durably(path, codec.encode(deletion))
    return path


def pending(folder: Path) -> Iterator[tuple[Path, Deletion]]:
    """The orders in the folder; files that are not orders are moved away."""
    try:
        there = sorted((folder / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # as long as there was none
    for path in (each for each in there if each.suffix == _SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            try:
                deletion = codec.decode_kept(path.read_bytes(), Deletion, "The order")
            except BadRequest as error:
                _log.warning("%s is not an order to delete: %s", path, error)
                path.replace(path.with_suffix(".bad"))
                continue
            yield path, deletion


def is_left(folder: Path, order: str) -> bool:
    """Whether the file of that order (its name without the ending) is still there."""
    return (folder / FOLDER / f"{order}{_SUFFIX}").exists()


def remove(path: Path) -> None:
    """Remove an order that is now in the journal."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)

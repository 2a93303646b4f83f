"""A tree is saved, stands still until it is ended or thawed, and comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint import preflight
from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.open_files import (
    FileFingerprint,  # noqa: TC001 - msgspec's
)
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.images import KeptImages
from jupyterhub_gpu_reclaim.checkpoint.rehearsal.rehearse import Dumped, rehearse
from jupyterhub_gpu_reclaim.checkpoint.tree import dump, freeze
from jupyterhub_gpu_reclaim.checkpoint.tree import restore as returns
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import refuse_fatal
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.engine import tree as trees
from jupyterhub_gpu_reclaim.engine.images import IMAGES, CheckpointImages
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.keys import load_keys, make_key_file
from jupyterhub_gpu_reclaim.store.repository import Repository

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.engine.tree import Tree

#: What a return has to know besides CRIU's images.
_TREE: Final = "tree.json"


class _Saved(Value, frozen=True, kw_only=True):
    """See ``dump.DumpResult``."""

    root_pid: int
    pids: tuple[int, ...]
    stopped: tuple[int, ...]
    pipes: tuple[str, ...]
    opened: tuple[FileFingerprint, ...]


def open_store(folder: Path, key_file: Path) -> Repository:
    """A store in a folder; both are made where they are not there.

    Args:
        folder: where checkpoints stand, encrypted.
        key_file: what they are encrypted with; keep it somewhere else.

    Raises:
        StoreError: it cannot be opened, or the key is none.
    """
    key_file.parent.mkdir(parents=True, exist_ok=True)
    make_key_file(key_file, "engine")
    keys = load_keys(file=key_file)
    return Repository(FolderBackend(folder), clock=SystemClock(), keys=keys)


def findings(tree: Tree) -> list[Finding]:
    """What keeps a tree from being saved now, each with a sentence; empty is good."""
    found = preflight.examine(
        tree.init_pid,
        processes.snapshot(tree.init_pid, tree.init_start),
        binary.check(binary.FOLDER),
    )
    return [finding for finding in found if finding.fatal]


def capture(
    tree: Tree,
    store: Repository,
    checkpoint: str,
    *,
    name: str = "tree",
    generation: int = 1,
    limit: float = 600.0,
) -> CheckpointInfo:
    """Save a tree and try its return; it stands still when this returns.

    End it then, or :func:`thaw` it. On any error it goes on as before, and nothing is
    saved.

    Args:
        tree: that runs.
        store: where to.
        checkpoint: id of the new checkpoint, which none has had.
        name: of the tree; what is stored is compared with its last generation.
        generation: above those that it was saved as before.
        limit: seconds that the dump may take, and its rehearsal.

    Raises:
        Refused: it cannot be saved, by what :func:`findings` tells first.
        RolledBack: CRIU could not, it would not come back, or time was up.
        StoreError: the store could not take it.
    """
    refuse_fatal(findings(tree), Refused)
    criu = binary.locate(binary.FOLDER)
    writer = store.begin(
        id=checkpoint, key=SessionKey(name), incarnation=name, generation=generation
    )
    kept = KeptImages(lambda image: writer.file(IMAGES + image))
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = dump.dump(criu, tree, sinks=kept, folder=Path(folder), limit=limit)
        stands = processes.snapshot(tree.init_pid, tree.init_start)
        opened = open_files.fingerprint(
            tree.init_pid, [process.pid for process in stands.processes]
        )
        saved = _Saved(
            root_pid=result.root_pid,
            pids=result.pids,
            stopped=result.stopped,
            pipes=result.pipes,
            opened=tuple(opened),
        )
        writer.add(_TREE, codec.encode(saved))
        with tempfile.TemporaryDirectory() as folder:
            dumped = Dumped(kept.files, result, opened, ())
            rehearse(criu, tree, dumped, folder=Path(folder), limit=limit)
        return writer.commit(frozen_seconds=result.seconds)
    except BaseException:
        try:
            thaw(tree)  # first: a store that hangs must not keep it
        finally:
            writer.abort()
        raise


def thaw(tree: Tree) -> None:
    """Let a tree go on that was saved and still stands; nothing where it runs."""
    freeze.thaw(processes.snapshot(tree.init_pid, tree.init_start))


def restore(store: Repository, checkpoint: str, *, limit: float = 600.0) -> Tree:
    """Bring a tree back, under an init of its own; it runs when this returns.

    Args:
        store: where it was saved.
        checkpoint: its id; it may be restored again and again, which is for whoever
            calls to want.
        limit: seconds.

    Raises:
        NotFound: there is no such checkpoint.
        RestoreFailed: it does not come back, with the file, port or process that is
            in the way; nothing of it is there then.
        StoreError: it cannot be read.
    """
    there = store.open(checkpoint)
    try:
        saved = codec.decode(there.read(_TREE), _Saved)
    except BadRequest as error:
        why = "it is no checkpoint of a tree"
        raise RestoreFailed(
            Reason.CHECKPOINT_DAMAGED, why=why, detail=str(error)
        ) from None
    criu, source = binary.locate(binary.FOLDER), CheckpointImages(there)
    tree = trees.hold()
    try:
        with tempfile.TemporaryDirectory() as folder:
            restored = returns.restore(
                criu,
                tree,
                source=source,
                folder=Path(folder),
                limit=limit,
                root_pid=saved.root_pid,
                pids=saved.pids,
                pipes=saved.pipes,
                opened=saved.opened,
            )
        restored = returns.fill(tree, restored, source=source, limit=limit)
        returns.proceed(restored, saved.stopped)
    except BaseException:
        trees.end(tree)
        raise
    return tree

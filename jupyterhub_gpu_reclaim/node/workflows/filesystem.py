"""Saves what CRIU does not, the private file systems, and describes the rest.

A capture describes and archives, a restore compares and puts back. The tree is stopped
while a capture reads here, and does not exist while a restore writes here. No process
is touched.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.checkpoint.archive import reader, rootfs
from jupyterhub_gpu_reclaim.checkpoint.archive import writer as archive
from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files import kept_files
from jupyterhub_gpu_reclaim.checkpoint.files import open_files as files
from jupyterhub_gpu_reclaim.checkpoint.kinds import cut_connections
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.held import bound_now, shares_network
from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import names_in
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.linux.sock_diag import own_addresses
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import (
    ARCHIVE,
    FILES_IMAGE,
    IMAGES,
)
from jupyterhub_gpu_reclaim.node.requirements import (
    HostRequirements,
    rights_of,
    this_machine,
)
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows.lost_rights import given_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint
    from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
    from jupyterhub_gpu_reclaim.checkpoint.staging import Staging
    from jupyterhub_gpu_reclaim.checkpoint.tree.dump import DumpResult
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.mounts import Mount
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.jupyter.server import ServerState
    from jupyterhub_gpu_reclaim.node.requirements import Gpus
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.store.checkpoint import CheckpointReader
    from jupyterhub_gpu_reclaim.store.write.writer import CheckpointWriter

_log = logging.getLogger(__name__)


def describe(
    session: Session,
    *,
    result: DumpResult,
    cut: list[int],
    server_state: ServerState,
    uid: int,
    gpus: Gpus | None,
    reads: bool = True,
) -> HostRequirements:
    """The requirements of a tree that has just been stopped.

    Raises:
        NotFound: it has ended.
        Refused: its files cannot be looked at.
    """
    snapshot = trees.inspect(session)
    server, private = snapshot.server, _private(session)
    return HostRequirements(
        machine=this_machine(),
        root=result.root_pid,
        server=server.ns_pid if server else 0,
        uid=uid,
        pids=list(result.pids),
        stopped=list(result.stopped),
        cut=sorted(cut_connections.unread_ends(snapshot.processes).union(cut)),
        files=_opened(session, snapshot, reads=reads),
        archives=[str(mount.target) for mount in private],
        kernels=server_state.kernels,
        terminals=server_state.terminals,
        memory=trees.resident_bytes(snapshot),
        gpus=gpus,
        image=session.hint.image,
        node_labels=session.hint.node_labels,
        rights=rights_of(snapshot.processes),
        given_groups=given_groups(session),
        shares_network=shares_network(session.init_pid),
    )


def kept_bytes(session: Session, snapshot: Snapshot, limit: int) -> int:
    """Bytes of memory for copies of the files that it can write, at most.

    Raises:
        Refused: its files cannot be looked at.
    """
    return kept_files.most_bytes(_opened(session, snapshot, reads=False), limit)


def _opened(
    session: Session, snapshot: Snapshot, *, reads: bool
) -> list[FileFingerprint]:
    pids = [process.pid for process in snapshot.processes]
    private = {mount.device for mount in _private(session)}
    return files.fingerprint(session.init_pid, pids, private, reads=reads)


def refuse_container(session: Session) -> list[Finding]:
    """What would be lost with its container: its root, or files of a volume."""
    if not session.hint.pod:
        return []  # the machine's own, which stays
    mounts = read_mounts(session.init_pid)
    kind = rootfs.unsavable_root(mounts)
    found = [finding(Reason.ROOT_UNSUPPORTED, kind=kind)] if kind else []
    return found + [
        finding(Reason.VOLUME_ENDS, path=str(mount.target))
        for mount in rootfs.ending_volumes(mounts)
        if _holds_files(session.init_pid, mount)
    ]


def _holds_files(init_pid: int, mount: Mount) -> bool:
    try:
        with closing(archive.open_mount(init_pid, mount)) as folder:
            return bool(names_in(folder))
    except (Refused, OSError):
        return True  # it is a file itself, or what it holds is not known


def refuse_ports(
    session: Session, snapshot: Snapshot, ports: HeldPorts
) -> list[Finding]:
    """Why its ports and names cannot be kept for it; touches nothing.

    Raises:
        Refused: the kernel's list of its sockets cannot be read.
    """
    if not shares_network(session.init_pid):
        return []
    pids = [process.pid for process in snapshot.processes]
    return ports.findings(session.key.user, bound_now(session.init_pid, pids))


def save_archives(
    session: Session, writer: CheckpointWriter | Staging, cancel: Cancel
) -> None:
    """Stream every private file system of the session into the checkpoint.

    Raises:
        RolledBack: something cannot be read, or it was cancelled.
        StoreError: the store does not take it.
    """
    for number, mount in enumerate(_private(session)):
        name = ARCHIVE.format(number=number)
        with ExitStack() as stack, writer.file(name) as file:
            contents = closing(rootfs.open_contents(session.init_pid, mount))
            folder, merged = stack.enter_context(contents), None
            if mount.kind == "overlay":
                whole = closing(archive.open_mount(session.init_pid, mount))
                merged = stack.enter_context(whole)
            take = _checked(file.write, cancel)
            notes = archive.pack(folder, take, merged=merged)
        for note in notes:
            _log.info("%s %s: %s", session.key, mount.target, note)


def restore_archives(
    session: Session, checkpoint: CheckpointReader, world: HostRequirements
) -> None:
    """Put the private file systems back into the place of a holding init.

    Raises:
        RestoreFailed: the place lacks one of them, or does not take it.
        StoreError: the checkpoint is damaged.
    """
    here = {str(mount.target): mount for mount in _private(session)}
    for number, target in enumerate(world.archives):
        mount = here.get(target)
        if mount is None:
            raise RestoreFailed(
                Reason.RESTORE_FAILED, why=f"{target} is not a private folder here"
            )
        overlay = mount.kind == "overlay"
        with closing(archive.open_mount(session.init_pid, mount)) as folder:
            notes = reader.unpack(
                checkpoint.stream(ARCHIVE.format(number=number)),
                folder,
                overlay=overlay,
                clear=not overlay,
            )
        for note in notes:
            _log.info("%s %s: %s", session.key, target, note)


def _private(session: Session) -> list[Mount]:
    return rootfs.private_mounts(session.init_pid, session.hint.pod)


def _checked(
    write: Callable[[bytes], object], cancel: Cancel
) -> Callable[[bytes], object]:
    def take(data: bytes) -> object:
        cancel.check()
        return write(data)

    return take


def entries_in(
    checkpoint: CheckpointReader, world: HostRequirements, pid: int
) -> list[Any]:
    """Entries of ``files.img``, without what leads out of the network of that pid."""
    files_img = checkpoint.read(FILES_IMAGE)
    entries = list(images.file_entries(files_img))
    inet.close_external(entries, own_addresses(pid), world.cut)
    return entries


def memory_needed(
    session: Session, checkpoint: CheckpointReader, world: HostRequirements
) -> int:
    """Bytes of host memory that a restore under that init takes.

    GPU memory is first memory of its processes. Shared memory, which no process is
    charged with, is in CRIU's pages; files in memory are in the archives.
    """
    pages = sum(
        checkpoint.size(name)
        for name in checkpoint.names()
        if name.startswith(IMAGES + "pages-")
    )
    on_disk = {str(m.target) for m in _private(session) if m.kind == "overlay"}
    files = sum(
        checkpoint.size(ARCHIVE.format(number=number))
        for number, target in enumerate(world.archives)
        if target not in on_disk
    )
    return max(world.memory, pages) + files

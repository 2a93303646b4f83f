"""Files with a name, and FIFOs: opened before CRIU runs, and handed to it."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
from collections import defaultdict
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import run_as
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import Reopener
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import unread_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import FileRequest
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return


class Fifos(Kind):
    """FIFOs, and what is in them.

    It is put back once all ends are open.
    """

    def rewrite(self, back: Return) -> None:
        if (image := back.images.read("fifo-data.img")) is None:
            return
        entries = images.Entries([image], images.FIFO_DATA_MAGIC)
        while entries.has_more():
            one = entries.message("pipe_data_entry")
            data = entries.data(one.bytes)
            fill = functools.partial(_fill, back.pipes, one.pipe_id, data, one.size)
            back.when_open.append(fill)


class NamedFiles(Kind):
    """Files and folders that are open, mapped or run.

    Each is opened with the rights of its holder, and judged by its descriptor. Only
    what the kernel alone makes is left to CRIU by name: terminals, and files of
    ``/proc/PID`` (``process_files``).
    """

    def rewrite(self, back: Return) -> None:
        by_holder: dict[Credentials, list[FileRequest]] = defaultdict(list)
        for wish in back.saved.wishes:
            by_holder[wish.holder].append(wish)
        for who, wishes in by_holder.items():
            opener = Reopener(who, back.root, back.opened, back.pipes, back.trial)
            run_as(who, functools.partial(_open, back, opener, wishes))
        for both in back.pipes.values():
            back.stack.callback(os.close, both)
        for work in back.when_open:
            work()
        if back.trial is None or not back.trial.goes_on:
            held = defaultdict(list)
            for wish in back.saved.wishes:
                if wish.ghost < 0:
                    held[wish.path].append(back.file(wish.id))
            open_files.refuse_changed(back.opened.values(), held, back.root)
            _refuse_other_sizes(back)


def _open(back: Return, opener: Reopener, wishes: Iterable[FileRequest]) -> None:
    for wish in wishes:
        given = opener.open(wish, back.deleted.get(wish.ghost))
        back.hand_over(wish.id, given.descriptor)
        if given.file >= 0:
            back.stack.callback(os.close, given.file)
            back.stood_for[wish.id] = given.file


def _refuse_other_sizes(back: Return) -> None:
    """Judge the files of which there is no fingerprint, as CRIU would.

    Raises:
        RestoreFailed: one is shorter or longer than it was (``file_changed``).
    """
    for wish in back.saved.wishes:
        reg = back.saved.entries[wish.id].reg
        if wish.ghost >= 0 or wish.path in back.opened or not reg.HasField("size"):
            continue
        status = os.fstat(back.file(wish.id))
        if stat.S_ISREG(status.st_mode) and status.st_size != reg.size:
            raise refused(Reason.FILE_CHANGED, wish.path)


def _fill(pipes: dict[int, int], number: int, data: bytes, size: int) -> None:
    """Put a FIFO's size (0: not known) and contents back.

    Raises:
        OSError: it does not take so much any more.
    """
    both = pipes.get(number, -1)
    if both < 0 or unread_bytes(both):
        return  # another process has it open, and it was never empty
    if size:
        fcntl.fcntl(both, fcntl.F_SETPIPE_SZ, size)
    if os.write(both, data) != len(data):
        raise OSError(errno.ENOSPC, "a FIFO does not take what it held")

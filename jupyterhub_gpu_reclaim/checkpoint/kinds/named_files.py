"""Files with a name: opened before CRIU runs, and handed to it; FIFOs: refused."""

from __future__ import annotations

import functools
import os
import stat
from collections import defaultdict
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import run_as
from jupyterhub_gpu_reclaim.checkpoint.files.reopen import Reopener
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials
    from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import FileRequest
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return, Session
    from jupyterhub_gpu_reclaim.common.models import Finding


class Fifos(Kind):
    """FIFOs (named pipes), which few programs have.

    A return could put what is in one back only while nobody else has it open. One that
    is opened after this has been asked does not pass the rehearsal: it is no file.
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for each in one.descriptors:
                if not each.target.startswith("/"):
                    continue
                status = one.target(f"fd/{each.fd}")
                if status is not None and stat.S_ISFIFO(status.st_mode):
                    yield one.holds(f"the FIFO {each.target}")


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
            opener = Reopener(who, back.root, back.opened, back.trial)
            run_as(who, functools.partial(_open, back, opener, wishes))
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

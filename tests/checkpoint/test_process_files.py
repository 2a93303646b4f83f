"""Files of /proc/PID come back only where root's opening them gives nothing away."""

import os
import stat
from contextlib import ExitStack

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials, PathContext
from jupyterhub_gpu_reclaim.checkpoint.files.saved_files import SavedFiles
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return
from jupyterhub_gpu_reclaim.checkpoint.kinds.process_files import ProcessFiles, refusal
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason

USER, OTHER, ROOT = (
    Credentials(1000, 1000),
    Credentials(1001, 1001),
    Credentials(0, 0, (), 1 << 21),
)
ALONE = SavedFiles(credentials={300: USER, 301: USER})
HIDDEN = SavedFiles(credentials={300: USER, 301: USER}, hidden={300})
ALL_ROOT = SavedFiles(credentials={300: ROOT, 301: ROOT})
MIXED = SavedFiles(credentials={300: USER, 301: USER, 302: ROOT, 303: OTHER})
READ, BOTH = os.O_RDONLY, os.O_RDWR


def judged(name: str, flags: int, tree: SavedFiles, *, of=300, by=300) -> str:
    reg = images.plain_file(1).reg
    reg.name = f"/proc/{of}/{name}".encode().removesuffix(b"/")
    reg.flags, reg.mode = flags, stat.S_IFREG | 0o600
    return refusal(reg, by, tree)


@pytest.mark.parametrize(
    ("name", "flags", "tree", "of", "by"),
    [
        ("mem", BOTH, ALONE, 300, 300),
        ("environ", READ, MIXED, 300, 301),
        ("pagemap", READ, ALL_ROOT, 300, 301),
        ("task/305/comm", READ, MIXED, 300, 300),
        ("", READ, ALONE, 300, 300),
    ],
)
def test_what_gives_nothing_away_comes_back(name, flags, tree, of, by):
    assert judged(name, flags, tree, of=of, by=by) == ""


@pytest.mark.parametrize(
    ("name", "flags", "tree", "of", "by"),
    [
        # Of another process, whatever its rights.
        ("mem", BOTH, ALONE, 300, 301),
        ("mem", READ, ALL_ROOT, 300, 301),
        ("oom_score_adj", BOTH, ALL_ROOT, 300, 300),
        ("task/305/comm", os.O_WRONLY, ALONE, 300, 300),
        # What a program of other rights may have got from the one that started it.
        ("mem", BOTH, MIXED, 302, 302),
        ("mem", BOTH, HIDDEN, 300, 300),
        # Root's opening would tell its user more, or let him do more.
        ("pagemap", READ, ALONE, 300, 300),
        ("stack", READ, ALONE, 300, 300),
        ("uid_map", BOTH, ALONE, 300, 300),
        ("attr/current", BOTH, ALONE, 300, 300),
        # Of a process with other rights, or in hands that are not known.
        ("environ", READ, MIXED, 302, 300),
        ("maps", READ, MIXED, 303, 300),
        ("environ", READ, MIXED, 300, None),
        # Of a process outside of the tree, which may be another one now.
        ("environ", READ, ALONE, 1, 300),
        ("status", READ, ALONE, 999, 300),
    ],
)
def test_what_would_give_something_away_is_refused(name, flags, tree, of, by):
    assert judged(name, flags, tree, of=of, by=by)


def test_folder_that_is_not_the_kernels_is_refused():
    entry = images.plain_file(1)
    entry.reg.name, entry.reg.mode = b"/proc/300/status", stat.S_IFREG | 0o400
    saved = SavedFiles(
        entries={1: entry},
        descriptors={(300, 5): (images.TYPE_REG, 1)},
        left=[1],
        credentials=ALONE.credentials,
    )

    def judge(init_pid: int) -> None:
        place = PathContext(-1, -1)
        back = Return(init_pid, SavedImages(None), saved, {}, ExitStack(), place)
        ProcessFiles().rewrite(back)

    judge(os.getpid())
    with pytest.raises(RestoreFailed) as caught:
        judge(2**22 + 1)  # no such process sees anything
    assert caught.value.reason is Reason.FILE_DENIED

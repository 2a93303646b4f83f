"""What a dump leaves behind in a session's folders, and what is none of ours there."""

import subprocess
import sys

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import remove_link_remaps
from jupyterhub_gpu_reclaim.linux import processes

HOLDER = """
import os, sys
os.chdir(sys.argv[1])
kept = open("work/data", "w")
os.link("work/data", "work/link_remap.7")
os.unlink("work/data")
open("work/link_remap.8", "w").close()
open("work/link_remap.7.mine", "w").close()
print("up", flush=True)
input()
"""


def holder(folder):
    (folder / "work").mkdir()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_remove_link_remaps_takes_the_names_of_its_own_deleted_files_only(tmp_path):
    with holder(tmp_path) as program:
        program.stdout.readline()
        process = processes.snapshot_init(program.pid)
        removed = remove_link_remaps(process)
        again = remove_link_remaps(process)
        program.communicate(b"\n")
    assert removed == ["link_remap.7"]
    assert again == []
    left = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert left == ["link_remap.7.mine", "link_remap.8"]


def test_remove_link_remaps_of_a_process_that_has_ended_does_nothing(tmp_path):
    with holder(tmp_path) as program:
        program.stdout.readline()
        process = processes.snapshot_init(program.pid)
        program.communicate(b"\n")
    assert remove_link_remaps(process) == []

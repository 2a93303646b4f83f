"""A file system of a user's own that never answers keeps nobody waiting who looks."""

import threading

import pytest

from tests.checkpoint.test_put_back import Then

#: A file system whose program never reads a request; its root is held open.
SILENT = """
import ctypes
server = os.open("/dev/fuse", os.O_RDWR)
os.mkdir(folder)
words = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % server
done = ctypes.CDLL(None).mount(b"silent", folder.encode(), b"fuse", 0, words)
held = os.open(folder, os.O_PATH) if not done else -1
"""


def test_files_are_put_back_beside_a_file_system_that_never_answers(places, tmp_path):
    """Every program of the machine is looked at for those that have them open."""
    world = places.world()
    world(f"folder = {str(tmp_path / 'silent')!r}\n" + SILENT)
    if world("held") < 0:
        pytest.skip("no FUSE here")
    path = tmp_path / "files" / "file"
    path.parent.mkdir()
    path.write_bytes(b"then")
    with path.open("r+b"):
        then = Then(path.parent)
    path.write_bytes(b"newer")
    done = []
    putting = threading.Thread(target=lambda: done.append(then.put_back()), daemon=True)
    putting.start()
    putting.join(60)
    world.place.kill()
    assert done
    assert path.read_bytes() == b"then"

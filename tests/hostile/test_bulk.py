"""A session that is large in name only costs no more than what it holds."""

import time

from jupyterhub_gpu_reclaim.checkpoint.files import open_files
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed


def test_sparse_terabytes_are_saved_in_seconds_and_little_room(
    places, engine, tmp_path
):
    world = places.world()
    world(
        "import mmap\n"
        f"named = open({str(tmp_path / 'named')!r}, 'w+b'); named.truncate(1 << 40)\n"
        f"gone = open({str(tmp_path / 'gone')!r}, 'w+b'); gone.truncate(1 << 40)\n"
        "gone.seek(1 << 39); gone.write(b'middle'); gone.flush()\n"
        "os.unlink(gone.name)\n"
        "flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000\n"
        "space = mmap.mmap(-1, 1 << 40, flags); space[1 << 38] = 7"
    )
    begun = time.monotonic()
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    pids = [process.pid for process in world.place.tree.processes]
    opened = open_files.fingerprint(world.place.init_pid, pids)
    assert any(one.size == 1 << 40 for one in opened)
    assert sum(len(data) for data in image.values()) < 200 << 20
    world.place.kill()
    place = places.hold()
    restored = engine.restore(place, image, result)
    proceed(restored, result.stopped)
    assert time.monotonic() - begun < 120
    world = world.at(place)
    assert world("gone.seek(1 << 39); gone.read(6)") == b"middle"
    assert world("os.fstat(gone.fileno()).st_size") == 1 << 40
    assert world("space[1 << 38], space[(1 << 39) + 1]") == (7, 0)

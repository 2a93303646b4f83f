"""Files that a process has mapped shared and open as well, beside another process.

Python's ``mmap`` keeps a descriptor, and NVIDIA's driver maps such files for events
that two processes share. CRIU has one entry for the mapping and the descriptor.
"""

from __future__ import annotations

import pytest

PROGRAM = """
import mmap, os, signal
name = {name!r}
def mapped():
    descriptor = os.open(name, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 8192)
    finally:
        os.close(descriptor)
def beside():
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        own = mapped()
        os.write(writing, b"1")
        while True:
            signal.pause()
    os.read(reading, 1)
    os.close(reading), os.close(writing)
with open(name, "wb") as file:
    file.write(b"x" * 8192)
area = mapped()
"""
WAYS = {
    "named": "beside()",
    "deleted": "beside(); os.unlink(name)",
    "deleted and made anew": "beside(); os.unlink(name); open(name, 'wb').write(b'y')",
}


@pytest.mark.parametrize("way", WAYS)
def test_file_that_two_processes_have_mapped_comes_back(places, engine, tmp_path, way):
    world = places.world()
    world(PROGRAM.format(name=str(tmp_path / "file")) + WAYS[way] + "\narea[0:1]")
    world = engine.cycle(world, places)
    assert world("area[0:1]") == b"x"
    world("area[0:1] = b'z'")
    assert engine.cycle(world, places)("area[0:1]") == b"z"

"""Files that a process has mapped shared and open as well, beside another process.

Python's ``mmap`` keeps a descriptor, and NVIDIA's driver maps such files for events
that two processes share. CRIU has one entry for the mapping and the descriptor.
"""

PROGRAM = """
import mmap, os, signal
def mapped(name):
    descriptor = os.open(name, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 8192)
    finally:
        os.close(descriptor)
def beside(name):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        own = mapped(name)
        os.write(writing, b"1")
        while True:
            signal.pause()
    os.read(reading, 1)
    os.close(reading), os.close(writing)
def begin(name):
    with open(name, "wb") as file:
        file.write(b"x" * 8192)
    areas[name] = mapped(name)
    beside(name)
areas = {}
"""


def test_file_that_two_processes_have_mapped_comes_back(places, engine, tmp_path):
    """With its name, deleted, and deleted and made anew."""
    names = [str(tmp_path / name) for name in ("named", "deleted", "anew")]
    _, deleted, anew = names
    world = places.world()
    world(PROGRAM)
    for name in names:
        world(f"begin({name!r})")
    world(f"os.unlink({deleted!r}); os.unlink({anew!r})")
    world(f"with open({anew!r}, 'wb') as file: file.write(b'y')")
    seen = "{os.path.basename(name): area[0:1] for name, area in areas.items()}"
    world = engine.cycle(world, places)
    assert world(seen) == {"named": b"x", "deleted": b"x", "anew": b"x"}
    world("for area in areas.values(): area[0:1] = b'z'")
    world = engine.cycle(world, places)
    assert world(seen) == {"named": b"z", "deleted": b"z", "anew": b"z"}

"""A container's cards are those that it has device nodes of."""

import os
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu import visible_devices

#: Nodes in a folder of its own; says when they are there.
CONTAINER = """
import os, stat, sys
nodes = {"nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia2": (1, 2)}
for name, number in nodes.items():
    os.mknod(f"dev/{name}", stat.S_IFCHR | 0o600, os.makedev(*number))
os.symlink("/dev/nvidia1", "dev/nvidia3")
os.chroot(".")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver(tmp_path):
    for minor in range(4):
        folder = tmp_path / "driver" / "gpus" / f"0000:{minor:02}:00.0"
        folder.mkdir(parents=True)
        uuid = f"GPU-{minor}c5f1d7a-0000-1111-2222-333344445555"
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        )
    return tmp_path / "driver"


@pytest.fixture
def container(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes device nodes")
    (tmp_path / "root" / "dev").mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CONTAINER],
        cwd=tmp_path / "root",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as popen:
        popen.stdout.readline()
        yield popen.pid
        popen.kill()


def test_visible_cards_are_those_with_a_node_of_the_drivers(driver, container):
    found = visible_devices.visible_to(container, driver=driver)
    assert found == {"1c5f1d7a000011112222333344445555"}


def test_visible_cards_without_a_driver_or_a_node_are_not_told(driver, container):
    assert visible_devices.visible_to(container, driver=driver / "none") is None
    (driver / "gpus" / "0000:01:00.0" / "information").write_text("Model: damaged")
    assert visible_devices.visible_to(container, driver=driver) is None
    assert visible_devices.visible_to(2**22 + 1, driver=driver) is None


def test_visible_cards_are_not_told_to_who_may_not_look_at_the_hosts_files():
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes somebody else")
    code = (
        "import os, pathlib;"
        "from jupyterhub_gpu_reclaim.checkpoint.gpu import visible_devices;"
        "closed = pathlib.Path('/proc/1/root/proc/driver/nvidia'); os.setuid(65534);"
        "print(visible_devices.visible_to(os.getpid(), driver=closed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "None\n", done.stderr

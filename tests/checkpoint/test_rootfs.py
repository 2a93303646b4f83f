"""What dies with a pod is archived; what the host or others have is left alone."""

import os

import pytest

from jupyterhub_gpu_reclaim.checkpoint.archive import rootfs
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.linux import mounts
from jupyterhub_gpu_reclaim.linux.beneath import names_in

POD = "0d6ed7e5-3b1a-4c39-9c3f-2d1f5f0a7b11"
ID = "5e" * 32
KUBELET = f"/var/lib/kubelet/pods/{POD}/volumes"
SESSION = mounts.parse_mounts(
    """\
10 1 0:90 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/var/x/fs,workdir=/w
11 10 0:91 / /proc rw - proc proc rw
12 10 0:92 / /dev rw - tmpfs tmpfs rw
13 12 0:60 / /dev/shm rw - tmpfs shm rw
14 10 0:61 / /cache rw - tmpfs tmpfs rw
15 10 0:62 / /run/secrets/kubernetes.io/serviceaccount ro - tmpfs tmpfs rw
16 10 0:25 / /host-run rw - tmpfs tmpfs rw
17 10 0:25 /x /etc/hostname rw - tmpfs tmpfs rw
18 10 8:1 /home /home/ann rw - ext4 /dev/sda1 rw
19 10 0:63 / /others rw - tmpfs tmpfs rw
20 10 0:64 / /made-inside rw - tmpfs tmpfs rw
21 11 0:65 / /proc/acpi ro - tmpfs tmpfs ro
"""
)
CONTAINERD = f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm"
CRIO = f"/run/containers/storage/overlay-containers/{ID}/userdata/shm"


def host(shm: str) -> list[mounts.Mount]:
    return mounts.parse_mounts(
        f"""\
30 1 8:2 / / rw - ext4 /dev/sda2 rw
31 30 0:25 / /run rw - tmpfs tmpfs rw
32 31 0:60 / {shm} rw - tmpfs shm rw
33 30 0:90 / /run/task/k8s.io/{ID}/rootfs rw - overlay x rw,upperdir=/var/x/fs
34 30 0:61 / {KUBELET}/kubernetes.io~empty-dir/cache rw - tmpfs tmpfs rw
35 30 0:62 / {KUBELET}/kubernetes.io~projected/token rw - tmpfs tmpfs rw
36 30 0:63 / /var/lib/kubelet/pods/{POD[::-1]}/volumes/x rw - tmpfs tmpfs rw
"""
    )


@pytest.mark.parametrize("shm", [CONTAINERD, CRIO])
def test_pods_own_are_the_root_memory_and_volumes_in_memory(shm):
    found = rootfs.pods_own(SESSION, host(shm), POD)
    targets = [str(mount.target) for mount in found]
    assert targets == ["/", "/cache", "/dev/shm", "/made-inside"]


def test_memory_of_the_host_is_not_the_pods():
    shared = [
        *host(CONTAINERD),
        *mounts.parse_mounts("40 30 0:60 / /dev/shm rw - tmpfs x rw\n"),
    ]
    found = rootfs.pods_own(SESSION, shared, POD)
    assert "/dev/shm" not in [str(mount.target) for mount in found]


def test_pod_without_an_overlay_has_no_root_to_save():
    plain = [mount for mount in SESSION if mount.kind != "overlay"]
    found = rootfs.pods_own(plain, host(CONTAINERD), POD)
    assert "/" not in [str(mount.target) for mount in found]


def test_session_on_the_hosts_root_keeps_what_the_host_has_unmounted_to_itself():
    ours = mounts.parse_mounts("30 1 0:90 / / rw - overlay overlay rw\n")
    (found,) = rootfs.sessions_own(SESSION, ours)
    assert str(found.target) == "/dev/shm"
    ours += mounts.parse_mounts("31 30 0:60 / /dev/shm rw - tmpfs shm rw\n")
    assert rootfs.sessions_own(SESSION, ours) == []


@pytest.mark.parametrize(
    "folder",
    [
        f"/var/lib/docker/volumes/{ID}/_data",
        f"/volumes/{ID}/_data",  # a disk of its own
        f"{KUBELET}/kubernetes.io~empty-dir/scratch",
        f"{KUBELET}/kubernetes.io~empty-dir/scratch/part",
        f"/var/lib/containerd/io.containerd.grpc.v1.cri/containers/{ID}/volumes/x1",
    ],
)
def test_volume_that_ends_with_its_container_is_known_by_its_folder(folder):
    line = "40 10 8:1 {} /scratch {} - ext4 /dev/sda1 rw\n"
    found = rootfs.ending_volumes(
        [*SESSION, *mounts.parse_mounts(line.format(folder, "rw,relatime"))]
    )
    assert [str(mount.target) for mount in found] == ["/scratch"]
    shut = mounts.parse_mounts(line.format(folder, "ro"))
    assert rootfs.ending_volumes([*SESSION, *shut]) == []


@pytest.mark.parametrize(
    "folder",
    [
        "/var/lib/docker/volumes/homes/_data",
        f"{KUBELET}/kubernetes.io~csi/pvc-1/mount",
        f"{KUBELET}/kubernetes.io~configmap/settings",
        "/srv/homes/ann",
    ],
)
def test_volume_that_lasts_is_none_of_those(folder):
    line = f"40 10 8:1 {folder} /home/ann rw - ext4 /dev/sda1 rw\n"
    assert rootfs.ending_volumes([*SESSION, *mounts.parse_mounts(line)]) == []


def test_root_that_nobody_can_write_to_is_not_saved():
    shut = [SESSION[0]._replace(options=frozenset({"ro"})), *SESSION[1:]]
    found = rootfs.pods_own(shut, host(CONTAINERD), POD)
    assert "/" not in [str(mount.target) for mount in found]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, ""),
        ({"kind": "btrfs"}, "btrfs"),
        ({"kind": "fuse.fuse-overlayfs"}, "fuse.fuse-overlayfs"),
        ({"kind": "btrfs", "options": frozenset({"ro", "relatime"})}, ""),
    ],
)
def test_root_of_a_kind_that_keeps_changes_elsewhere_is_named(changes, kind):
    session = [SESSION[0]._replace(**changes), *SESSION[1:]]
    assert rootfs.unsavable_root(session) == kind


def test_private_mounts_of_a_session_on_the_hosts_root_are_none():
    assert rootfs.private_mounts(os.getpid()) == []


def test_open_contents_of_an_overlay_is_its_upper_folder(tmp_path):
    (tmp_path / "changed").touch()
    root = SESSION[0]._replace(super_options=frozenset({f"upperdir={tmp_path}"}))
    folder = rootfs.open_contents(os.getpid(), root)
    try:
        assert names_in(folder) == [b"changed"]
    finally:
        os.close(folder)


def test_open_contents_of_an_upper_folder_that_is_gone_is_refused():
    gone = SESSION[0]._replace(super_options=frozenset({"upperdir=/no/such/folder"}))
    with pytest.raises(Refused) as caught:
        rootfs.open_contents(os.getpid(), gone)
    assert caught.value.reason.value == "no_tree"

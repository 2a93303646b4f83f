"""Pods and containers are read from control groups as clusters name them."""

import os

import pytest

from jupyterhub_gpu_reclaim.linux.cgroups import (
    ContainerCgroup,
    container_of,
    parse_container,
)

UID = "0d6ed7e5-3b1a-4c39-9c3f-2d1f5f0a7b11"
LOW = UID.replace("-", "_")
STATIC = "8a1b5c7d9e0f11223344556677889900"
ID = "5e" * 32
BEST = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort"
BURST = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods"
OTHER = "ffffffff-3b1a-4c39-9c3f-2d1f5f0a7b11"


@pytest.mark.parametrize(
    "path",
    [
        # systemd driver: containerd, CRI-O, its nested group, cri-dockerd
        f"{BEST}-pod{LOW}.slice/cri-containerd-{ID}.scope",
        f"{BURST}-pod{LOW}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-{ID}.scope/container",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/docker-{ID}.scope",
        # cgroupfs driver
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/kubepods/burstable/pod{UID}/{ID}",
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods/pod{UID}/crio-{ID}",
        # kind, k3s, a root of the administrator's
        f"{KIND}-pod{LOW}.slice/cri-containerd-{ID}.scope",
        f"/docker/{'ab' * 32}/kubelet/kubepods/burstable/pod{UID}/{ID}",
        f"/system.slice/k3s.service/kubepods/burstable/pod{UID}/{ID}",
        # as seen from a control group namespace beside or below
        f"/../../kubepods-besteffort-pod{LOW}.slice/cri-containerd-{ID}.scope",
        f"/../../../../kubepods/burstable/pod{UID}/{ID}/init.scope",
    ],
)
@pytest.mark.parametrize("line", ["0::{}\n", "11:memory:{}\n1:name=systemd:{}\n0::/\n"])
def test_container_of_a_cluster_is_known(path, line):
    assert parse_container(line.format(path, path)) == ContainerCgroup(UID, ID)


def test_pod_of_the_kubelet_itself_has_a_hash_for_a_uid():
    path = f"/kubepods/burstable/pod{STATIC}/{ID}"
    assert parse_container(f"0::{path}\n") == ContainerCgroup(STATIC, ID)


@pytest.mark.parametrize(
    "table",
    [
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-1.scope\n",
        f"0::/pod{UID}/{ID}\n",
        f"0::/mine/pod{UID}/{ID}\n",
        f"0::/docker/{ID}\n",
        f"0::/kubepods/burstable/pod{UID[:-1]}/{ID}\n",
        f"0::/kubepods.slice/my-pod{LOW}.slice/cri-containerd-{ID}.scope\n",
        "nonsense\n1:2\n",
        # two hierarchies that do not agree
        f"2:cpu:/kubepods/pod{UID}/{ID}\n1:memory:/kubepods/pod{OTHER}/{ID}\n",
        f"2:cpu:/kubepods/pod{UID}/{ID}\n1:memory:/kubepods/pod{UID}/{'00' * 32}\n",
    ],
)
def test_what_is_in_no_pod_is_none(table):
    assert parse_container(table) is None


@pytest.mark.parametrize(
    "mine",
    [
        f"kubepods/burstable/pod{OTHER}/{ID}",
        f"kubepods.slice/kubepods-pod{OTHER.replace('-', '_')}.slice/crio-{ID}.scope",
    ],
)
def test_groups_that_a_user_has_made_below_his_own_do_not_count(mine):
    above = f"/kubepods/burstable/pod{UID}/{ID}"
    assert parse_container(f"0::{above}/{mine}\n") == ContainerCgroup(UID, ID)
    assert parse_container(
        f"0::/kubepods/burstable/pod{UID}/{mine}\n"
    ) == ContainerCgroup(UID, "")


def test_own_process_is_in_no_pod_and_a_gone_one_neither():
    assert container_of(os.getpid()) is None
    assert container_of(2**22 + 1) is None

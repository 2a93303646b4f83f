"""Chooses where an agent looks for sessions, by the placement it was started for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux import host
from jupyterhub_gpu_reclaim.node.sessions.docker_placements import (
    SOCKET,
    DockerEngine,
    DockerPlacements,
)
from jupyterhub_gpu_reclaim.node.sessions.placements import (
    LocalPlacements,
    PodPlacements,
)

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements

KINDS = ("local", "docker", "kubernetes")


def make_placements(
    placement: str, realm: str, docker_socket: str = SOCKET
) -> Placements:
    if placement == "local":
        return LocalPlacements(realm)
    # Control groups are named from here on as the host names them.
    host.name_groups_as_host()
    if placement == "docker":
        return DockerPlacements(DockerEngine(docker_socket), realm)
    return PodPlacements(realm)

"""Which tests are pure: no root, no program, no server; ``make quick`` runs them.

They get the marker ``pure``. A room is listed whole where nearly all of it is.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.support import root

TESTS = Path(__file__).parents[1]
ROOMS: Final = {
    "clients",
    "events",
    "kubernetes_manifests",
    "notices",
    "policy",
    "spawner",
    "store",
}
#: In the other rooms: each room with its files, without ``test_`` and ``.py``.
FILES: Final = {
    "": "architecture docs fair_order public_api reasons room_mutants wire",
    "checkpoint": "cgroup containers gpu_clients held images process_files protection"
    " readiness ready rootfs sockets thaw",
    "cli": "sessions",
    "contracts": "backend repository",
    "controlplane": "answers audit_text phases"
    " preemption reconciler streams suspensions totals workqueue",
    "kube": "agents pod watched",
    "node": "again card_room docker_placements ended listening messages"
    " operations outcomes placements pods records requirements rights",
    "sampling": "nvml window",
    "service": "cards commands_refused settings table",
}
#: Those of the rooms that start programs.
NOT: Final = {"store/test_workers.py", "store/test_crash.py"}


_LISTED: Final = {
    Path(room, f"test_{name}.py")
    for room, names in FILES.items()
    for name in names.split()
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of the others, where only these are asked for."""
    if config.option.markexpr != "pure" or TESTS not in collection_path.parents:
        return None
    if collection_path.is_dir():
        return True if collection_path.name not in {*ROOMS, *FILES} else None
    return None if _may_be(collection_path) else True


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if _may_be(item.path) and not root.needs_root(item):
            item.add_marker("pure")


def _may_be(file: Path) -> bool:
    path = root.below_tests(file)
    whole = path.parts[0] in ROOMS and path.as_posix() not in NOT
    return whole or path in _LISTED

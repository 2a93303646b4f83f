"""The order in which sessions that wait for a GPU are served, by service and agents."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey


def fair(
    waiting: Iterable[tuple[SessionKey, float]], held: Mapping[str, int]
) -> list[SessionKey]:
    """First come, first served; but each user's first session before any second."""
    # A user with many servers does not block others. ``held``: what each has already.
    seen = Counter(held)
    order: list[tuple[int, float, SessionKey]] = []
    for key, since in sorted(waiting, key=lambda each: (each[1], each[0])):
        order.append((seen[key.user], since, key))
        seen[key.user] += 1
    return [key for _, _, key in sorted(order)]

"""The managers' page: totals here, and tables that its script draws of the API.

All sessions, the nodes and the store are views of one page. What a button does is a
call of the API; the page gets there with its proof (``api/visits.py``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.controlplane import accounting
from jupyterhub_gpu_reclaim.service.api.base import ManagerRoute
from jupyterhub_gpu_reclaim.service.web.pages import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount

#: A view's address → its title.
_VIEWS = {"all": "All sessions", "nodes": "Nodes", "store": "Checkpoints"}
#: GPUs by state: the words for them, what they mean, and the name of their colour.
_GPUS = (
    (accounting.IN_USE, "GPUs in use", "", "in-use"),
    (accounting.IDLE, "GPUs idle", "held, not used", "idle"),
    (accounting.FREED, "GPUs freed", "by suspended sessions", "freed"),
)


@dataclass(frozen=True)
class Number:
    value: str
    words: str
    about: str = ""
    name: str = ""  #: name of its colour


class ManagersPage(ManagerRoute, Page):
    """The page; its script asks for it again for the totals."""

    async def get(self, view: str) -> None:
        control = self.context.control
        self.page(
            "manager.html",
            view=view,
            title=_VIEWS[view],
            xsrf=self.xsrf(),
            troubles=[
                *(f"The {part} does not answer." for part in control.silent_parts()),
                *self.context.warnings(),
            ],
            numbers=[
                *_gpus(control.gpus()),
                Number(_hours(control.gpu_seconds() / 3600), "GPU-hours given back"),
                Number(
                    words.size(control.stored_bytes()),
                    "in the store",
                    "of all sessions",
                ),
            ],
        )


def _hours(count: float) -> str:
    """Write hours as whole ones, and with tenths where there are few."""
    return f"{count:,.{0 if count >= 10 else 1}f}" if count else "0"


def _gpus(counts: Sequence[GpuCount]) -> list[Number]:
    found: dict[str, float] = defaultdict(float)
    for one in counts:
        state = accounting.IDLE if one.state == accounting.KEPT else one.state
        found[state] += one.number
    return [
        Number(f"{found[state]:g}", words, about, name)
        for state, words, about, name in _GPUS
    ]


ROUTES = ((f"({'|'.join(_VIEWS)})", ManagersPage),)

"""The report of a month as a page to print, and as a CSV file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from jupyterhub_gpu_reclaim.common.report import as_csv, month_at, neighbours
from jupyterhub_gpu_reclaim.service.api.history import report_of
from jupyterhub_gpu_reclaim.service.web.cards import instant
from jupyterhub_gpu_reclaim.service.web.manager.page import ManagerPage

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.report import Share

#: Share → its title on the page, and what an empty name means.
_TITLES = (
    ("users", "User", ""),
    ("groups", "Group", "no group"),
    ("nodes", "Node", "this machine"),
    ("gpus", "GPU", "not known"),
)


class ReportPage(ManagerPage):
    """The page."""

    saves_files: ClassVar = True

    async def get(self) -> None:
        """Show the page."""
        report = await report_of(self)
        now = self.context.clock.now()
        before, after = neighbours(report.month)
        self.page(
            "report.html",
            report=report,
            made=instant(now),
            gpu_hours=_number(report.gpu_hours) or "0",
            naps=_number(report.nap_gb_hours),
            naps_counted=report.nap_gb_hours is not None,
            naps_since=instant(report.naps_since) if report.naps_since else None,
            before=before,
            after=after if after <= month_at(now) else "",
            tables=[
                (title, _rows(getattr(report, name), empty))
                for name, title, empty in _TITLES
            ],
        )


class ReportFile(ManagerPage):
    """The report as a file."""

    async def get(self) -> None:
        """Send the file."""
        report = await report_of(self)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        name = f"gpu-hours-{report.month}.csv"
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.finish(as_csv(report))


def _rows(shares: list[Share], empty: str) -> list[tuple[str, str, int, str, float]]:
    """Name, hours, suspensions, memory of naps, and percent of the largest."""
    most = max((share.gpu_hours for share in shares), default=0.0) or 1.0
    return [
        (
            share.name or empty,
            _number(share.gpu_hours) or "0",
            share.suspensions,
            _number(share.nap_gb_hours) or "0",
            round(100 * share.gpu_hours / most, 1),
        )
        for share in shares
    ]


def _number(hours: float | None) -> str:
    """Write a number of hours with two or more digits; empty where there is nothing."""
    return f"{hours:,.{1 if hours >= 10 else 2}f}" if hours else ""


ROUTES = (("report", ReportPage), (r"report\.csv", ReportFile))

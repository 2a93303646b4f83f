"""The report of a month: what suspended and napping sessions have left to others.

Values for the API, and the same as CSV. A month is one of UTC. Suspensions count in
GPUs times hours, where a session counts with the GPUs that it held, or with its share
of one. Naps free memory of a GPU, and no GPU: they count in GB times hours.
"""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: Seconds for which it is known what a month had: two years and a month, to compare
#: the same months.
KEPT = 761 * 86400.0
#: How a month is written.
MONTH = r"20[0-9]{2}-(0[1-9]|1[0-2])"
#: A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Share(Value, frozen=True, kw_only=True):
    """Share of one user, group, node or model of GPU in a report."""

    name: str  #: empty: not known, or of nobody
    gpu_hours: float
    suspensions: int
    #: GPU memory that naps had moved out, in GB times hours; None: it was not counted
    nap_gb_hours: float | None = None


class Report(Value, frozen=True, kw_only=True):
    """One month. Users, nodes and GPUs add up to the whole.

    Groups need not: a user of two groups counts in both.
    """

    month: str  #: ``2026-11``
    begin: float
    end: float  #: of the month, or now where it is not over
    gpu_hours: float
    suspensions: int
    nap_gb_hours: float | None = None  #: of naps, as in a share
    #: since when naps were counted, where that was after its begin
    naps_since: float | None = None
    users: list[Share]  #: the largest first, as in the others
    groups: list[Share]  #: by the groups that the users are in now
    nodes: list[Share]  #: empty name: the Hub's own machine
    gpus: list[Share]


def month_at(at: float) -> str:
    """The month of a moment: ``2026-11``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")


def bounds(month: str) -> tuple[float, float]:
    """Begin and end of a month such as ``2026-11``, seconds since the epoch.

    Raises:
        BadRequest: it is no month.
    """
    if re.fullmatch(MONTH, month) is None:
        what = f"{month!r} is no month such as 2026-11."
        raise BadRequest(Reason.INVALID, what=what)
    begin = datetime(int(month[:4]), int(month[5:]), 1, tzinfo=UTC)
    return begin.timestamp(), _next(begin).timestamp()


def neighbours(month: str) -> tuple[str, str]:
    """The months before and after that one."""
    begin, end = bounds(month)
    return month_at(begin - 1), month_at(end)


def _next(begin: datetime) -> datetime:
    if begin.month < 12:
        return begin.replace(month=begin.month + 1)
    return begin.replace(year=begin.year + 1, month=1)


def as_csv(report: Report) -> str:
    """Write a report as CSV: one line for each share, with what it is a share by."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(("month", "by", "name", "gpu_hours", "suspensions", "nap_gb_hours"))
    kinds = {
        "user": report.users,
        "group": report.groups,
        "node": report.nodes,
        "gpu": report.gpus,
    }
    for kind, shares in kinds.items():
        for share in shares:
            name = f"'{share.name}" if share.name.startswith(_FORMULA) else share.name
            hours, naps = f"{share.gpu_hours:.3f}", ""
            if share.nap_gb_hours is not None:
                naps = f"{share.nap_gb_hours:.3f}"
            lines.writerow((report.month, kind, name, hours, share.suspensions, naps))
    return text.getvalue()

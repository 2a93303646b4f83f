"""The settings of DCGM as a second source of GPU use, and the client made from them.

An invalid value is an error at the service's start; a bad answer of Prometheus later
never is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from traitlets import Enum, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.traits import Address, Seconds
from jupyterhub_gpu_reclaim.service.dcgm.series import Names
from jupyterhub_gpu_reclaim.service.dcgm.source import DcgmUse, Prometheus

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock

_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_NAMES = re.compile(rf"{_LABEL}/{_LABEL}")
_MATCHER = rf'{_LABEL}(?:=|!=|=~|!~)"(?:[^"\\\n]|\\.)*"'
_SELECTOR = re.compile(rf"{_MATCHER}(?:,{_MATCHER})*")


class DcgmSource(Configurable):
    """NVIDIA's DCGM exporter, asked through Prometheus, if it is configured.

    For sessions in pods. It knows how much each card works and which pod has it.
    """

    url = Address(
        like="http://host:9090",
        base=True,
        help="""Address of the Prometheus server that scrapes the exporter.

        Also of anything with the same API (Thanos, Mimir, VictoriaMetrics), with the
        path that it is served under. With ``https`` nobody on the way reads it. Empty:
        none is asked. Example: "http://prometheus-server.monitoring:9090".
        """,
    ).tag(config=True)

    first = Enum(
        ["agent", "dcgm"],
        default_value="agent",
        help="""Whose word on a session's GPUs goes first; the other's counts where that
        one does not know.

        ``agent``: what NVIDIA's management library tells on the node, of each process
        and now. ``dcgm``: what the exporter tells, of whole cards and up to three
        scrapes old, which sees work that no process of the session shows.
        """,
    ).tag(config=True)

    scrape_interval = Seconds(
        30.0,
        min=1.0,
        max=600.0,
        help="""Seconds between two scrapes of the exporter, as Prometheus is set up.

        Values that are three times as old count no more. A number that is too small
        leaves the GPUs unknown, and a session whose GPU is unknown is not suspended;
        one that is too large believes old values for longer. It cannot be 0. Example:
        15.
        """,
    ).tag(config=True)

    time_limit = Seconds(
        5.0,
        min=0.1,
        max=60.0,
        help="""Seconds that Prometheus has for its one answer per round of samples.

        Nobody waits for it: a late answer counts in the next round. It cannot be 0.
        Example: 10.
        """,
    ).tag(config=True)

    labels = List(
        Unicode(),
        ["exported_namespace/exported_pod", "namespace/pod"],
        help="""The labels that hold the namespace and the name of the pod that has a
        card, with a slash between.

        The first that any series has are taken. ``exported_…`` is what Prometheus makes
        of the exporter's labels where ``honor_labels`` is false; ``namespace`` and
        ``pod`` are those of the exporter itself then. It cannot be empty. Example:
        ["pod_namespace/pod_name"] for an exporter with ``--use-old-namespace``.
        """,
    ).tag(config=True)

    selector = Unicode(
        "",
        help="""More matchers for the series, in PromQL, where one Prometheus knows more
        than this cluster.

        Without them, pods of the same name in two clusters cannot be told apart. Empty:
        none. Example: 'cluster="gpu-1"'.
        """,
    ).tag(config=True)

    token_file = Unicode(
        "",
        help="""File with a bearer token for Prometheus, read anew for each question.

        Empty: it needs none. Example: "/etc/jupyterhub/prometheus.token".
        """,
    ).tag(config=True)

    ca_file = Unicode(
        "",
        help="""Certificates (PEM) that vouch for an ``https`` address.

        Empty: those of the system. Example: "/etc/jupyterhub/prometheus-ca.crt".
        """,
    ).tag(config=True)

    @validate("labels")
    def _check_labels(self, proposal: Any) -> list[str]:
        labels: list[str] = proposal["value"]
        wrong = [one for one in labels if not _NAMES.fullmatch(one)]
        if wrong or not labels:
            raise TraitError(
                f"DcgmSource.labels must be like ['namespace/pod'], not {labels}"
            )
        return labels

    @validate("selector")
    def _check_selector(self, proposal: Any) -> str:
        selector: str = proposal["value"]
        if selector and not _SELECTOR.fullmatch(selector):
            raise TraitError(
                f"DcgmSource.selector must be like 'cluster=\"one\"', not {selector!r}"
            )
        return selector

    def open(self, clock: Clock) -> DcgmUse | None:
        """The client; None if it is not configured.

        Raises:
            Refused: the certificates cannot be read.
        """
        if not self.url:
            return None
        try:
            prometheus = Prometheus(
                self.url,
                token_file=self.token_file,
                ca_file=self.ca_file,
                seconds=self.time_limit,
            )
        except OSError as error:
            what = f"DcgmSource.ca_file {self.ca_file} cannot be used: {error}."
            raise Refused(Reason.SETTING_INVALID, what=what) from error
        return DcgmUse(
            prometheus,
            clock,
            first=self.first == "dcgm",
            scrape=self.scrape_interval,
            names=[Names(*one.split("/")) for one in self.labels],
            selector=self.selector,
        )

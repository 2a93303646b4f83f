"""What NVIDIA's DCGM exporter shows, and what Prometheus answers of it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from jupyterhub_gpu_reclaim.service.dcgm.series import Names, Series

#: In the format of the exporter's 4.x; cards and pods as the tests' scenes need them.
PAGE = Path(__file__).parents[1] / "service" / "dcgm-exporter.txt"
NAMES = (Names("exported_namespace", "exported_pod"), Names("namespace", "pod"))
#: What the exporter's own pod is called, where it is scraped.
EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}


def series(text: str, at: float, *, honored: bool, times: int = 3) -> list[Series]:
    """As Prometheus answers after some scrapes, 30 s apart, the last one ``at``.

    Args:
        text: the exporter's page.
        at: seconds since the epoch.
        honored: ``honor_labels``: the exporter's labels go before the target's.
        times: how often it was scraped.
    """
    found = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            for name, value in EXPORTER.items():
                if name not in labels:
                    labels[name] = value
                elif not honored:
                    labels[f"exported_{name}"] = labels.pop(name)
                    labels[name] = value
            values = [(at - 30.0 * back, repr(sample.value)) for back in range(times)]
            found.append(Series({"__name__": sample.name, **labels}, values[::-1]))
    return found

"""What the control plane has counted, as Prometheus would read it."""

from prometheus_client import CollectorRegistry

from jupyterhub_gpu_reclaim.controlplane.accounting import Counters
from jupyterhub_gpu_reclaim.controlplane.metrics import Totals


def counted(of: Counters | Totals, name: str, **labels: str) -> float:
    """A sample's value; 0 where there is no such series."""
    full = f"jupyterhub_gpu_reclaim_{name}"
    made = CollectorRegistry(auto_describe=False)
    made.register(of.registry if isinstance(of, Counters) else of)
    return made.get_sample_value(full, labels) or 0.0

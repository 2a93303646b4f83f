"""What the control plane has counted, as Prometheus would read it."""

from jupyterhub_gpu_reclaim.controlplane.accounting import Counters


def counted(counters: Counters, name: str, **labels: str) -> float:
    """A sample's value; 0 where there is no such series."""
    full = f"jupyterhub_gpu_reclaim_{name}"
    return counters.registry.get_sample_value(full, labels) or 0.0

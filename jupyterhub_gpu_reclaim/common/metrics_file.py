"""Metrics of a verification, in a file for Prometheus' node exporter.

A verification has ended long before it could be scraped. So its figures are written for
the exporter's textfile collector (``*.prom`` in a folder of its own), atomically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "jupyterhub_gpu_reclaim_"


def verified(
    file: Path | str, read: int, seconds: float, damaged: int, now: float
) -> None:
    """Write down a verification of the store or of a part of it.

    Args:
        file: is replaced.
        read: bytes that were read and are whole.
        seconds: that it took.
        damaged: checkpoints with damage, or whose master key is missing.
        now: seconds since the epoch.

    Raises:
        OSError: it could not be written.
    """
    _write(
        file,
        {
            "verify_timestamp_seconds": ("When the store was last verified.", now),
            "verify_duration_seconds": ("Time that it took.", seconds),
            "verify_bytes": ("Bytes that were read and are whole.", read),
            "verify_damaged_checkpoints": (
                "Checkpoints with damage in them, or whose master key is missing.",
                damaged,
            ),
        },
    )


def _write(file: Path | str, metrics: dict[str, tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    for name, (text, value) in metrics.items():
        Gauge(PREFIX + name, text, registry=registry).set(float(value))
    write_to_textfile(str(file), registry)

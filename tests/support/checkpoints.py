"""A checkpoint, of which a test says only what it is about."""

from typing import Any

from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey

PLAIN = {"generation": 1, "created": 1.0, "logical_bytes": 1, "stored_bytes": 1}


def checkpoint(
    of: str, key: SessionKey, incarnation: str = "i1", /, **facts: Any
) -> CheckpointInfo:
    """Its facts, of which those that are not given are plain ones."""
    return CheckpointInfo(id=of, key=key, incarnation=incarnation, **PLAIN | facts)

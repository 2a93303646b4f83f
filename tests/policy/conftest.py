"""A session that is idle in every respect, and time that stands still."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey, Usage
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot

#: A Tuesday, 22:13:20 UTC.
NOW = 1_700_000_000.0


@pytest.fixture
def now():
    return NOW


@pytest.fixture
def idle_usage():
    def make(**changes):
        usage = Usage(
            at=NOW,
            watched=3600.0,
            sample_age=3.0,
            last_active=NOW - 1800,
            last_active_what="kernel train.ipynb",
            cpu_percent=0.4,
            gpu_percent=0.1,
            gpu_memory=2**30,
            memory=10**9,
            connections=0,
            kernels=1,
            terminals=1,
            complete=True,
        )
        return msgspec.structs.replace(usage, **changes)

    return make


@pytest.fixture
def snapshot(idle_usage):
    def make(usage=None, **changes):
        values = {
            "key": SessionKey("ada"),
            "phase": Phase.RUNNING,
            "usage": idle_usage(**(usage or {})),
            "started_at": NOW - 7200,
        } | changes
        return SessionSnapshot(**values)

    return make

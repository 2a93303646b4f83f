"""The same Hub where sessions nap: its service's own policy, a kernel, a real card."""

import dataclasses
import time

import pytest

from demo.admin import Admin
from demo.stack import Stack
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.gpu.test_hub import (
    GIB,
    ON_THE_CARD,
    PATIENCE,
    Person,
    Work,
    admin,
    logs,
    metric,
    nvml,
    person,
    stack,
    used,
)

__all__ = ["admin", "logs", "nvml", "person", "stack"]  # the fixtures
pytestmark = pytest.mark.timeout(240)
NAP_AFTER, IDLE_AFTER = 5, 30


@pytest.fixture(scope="module")
def work(driver: Driver) -> Work:
    """Half a minute of idleness: enough to nap, and then to be saved."""
    del driver
    settings = {**ON_THE_CARD.settings, "nap_after": NAP_AFTER}
    return dataclasses.replace(ON_THE_CARD, idle_after=IDLE_AFTER, settings=settings)


def test_kernel_that_rests_naps_by_itself_and_a_cell_has_its_card_back(
    admin: Admin, person: Person, nvml: Nvml
) -> None:
    person.run("begin()")
    person.run("go.clear()")
    held = used(nvml)
    admin.wait(person.name, phase="napping", seconds=PATIENCE)
    assert held - used(nvml) >= GIB
    assert metric(admin, "napping_gpu_memory_bytes") >= GIB
    person.server.json("GET", "kernels")  # as every open page does
    assert admin.session(person.name)["phase"] == "napping"
    began = time.monotonic()
    person.finds_all_as_it_was()
    print(f"a cell answers out of a nap in {time.monotonic() - began:.2f} s")
    admin.wait(person.name, phase="running", seconds=PATIENCE)
    assert used(nvml) >= GIB


def test_kernel_that_naps_on_is_saved_out_of_its_nap_and_comes_back(
    stack: Stack, admin: Admin, work: Work, nvml: Nvml
) -> None:
    """Another person's: after a nap as short as that before, the next one waits."""
    person = Person(stack, "eve", work)
    held = used(nvml)
    admin.wait(person.name, phase="napping", seconds=PATIENCE)
    assert held - used(nvml) >= GIB
    admin.wait(person.name, phase="suspended", seconds=PATIENCE)
    (preflight, gpu) = admin.session(person.name)["steps"][:2]
    print(f"saved out of its nap: {gpu['step']} took {gpu['seconds']:.2f} s")
    assert preflight["state"] == gpu["state"] == "done"
    print(f"visited after a nap and a suspend: there in {person.visit():.1f} s")
    person.finds_all_as_it_was()

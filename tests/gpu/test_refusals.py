"""What the driver cannot save is refused or taken back, and computes on."""

from tests.gpu.test_frameworks import TORCH

MANAGED = (
    TORCH
    + """
import ctypes
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
assert cuda.cuMemAllocManaged(
    ctypes.byref(pointer), ctypes.c_size_t(1 << 20), ctypes.c_uint(1)) == 0
"""
)


def test_managed_memory_is_refused_and_unharmed(session):
    one = session()
    one(MANAGED + "None")
    before = one("float(x.sum())")
    failure = one.capture()["failure"]
    assert failure["code"] == "gpu_unsupported"
    assert "managed memory" in failure["message"]
    assert one("float(x.sum())") == before


def test_a_card_that_does_not_come_to_an_end_is_taken_back(session):
    """About four seconds of one kernel, and one second that it is waited for."""
    one = session()
    one(TORCH + "y = x * 3; float(y.sum()); torch.cuda.synchronize()")
    one("torch.cuda._sleep(int(8e9)); None")
    failure = one.capture()["failure"]
    assert failure["code"] == "gpu_busy_too_long"
    assert one("float(y.sum() / x.sum())") > 2.9
    assert one.capture()["checkpoint"]
    one.thaw()
    assert one("float(y.sum() / x.sum())") > 2.9

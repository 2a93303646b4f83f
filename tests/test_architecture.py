"""The table of calls, against the kernel's own header."""

import re
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux import architecture

#: Of Debian's and Ubuntu's linux-libc-dev.
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def test_calls_have_the_numbers_of_the_kernels_header():
    if not HEADER.is_file():
        pytest.skip("needs linux-libc-dev")
    numbers = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", HEADER.read_text()))
    known = architecture.CALLS
    assert known == {call: int(numbers[call]) for call in known}


def test_a_machine_that_is_not_known_has_no_calls(monkeypatch):
    monkeypatch.setattr(architecture.platform, "machine", lambda: "aarch64")
    assert not architecture.is_known()
    with pytest.raises(OSError, match="aarch64"):
        architecture.call("mmap")

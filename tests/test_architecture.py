"""The tables of both processors, against the kernel's own headers."""

import re
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux import architecture, epoll

#: Of Debian's and Ubuntu's linux-libc-dev; the second is that of AArch64.
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("name", architecture.KNOWN)
def test_calls_have_the_numbers_of_the_kernels_header(name):
    if not HEADERS[name].is_file():
        pytest.skip("needs linux-libc-dev")
    text = HEADERS[name].read_text()
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text))
    known = architecture.KNOWN[name].calls
    assert known == {call: int(numbers[call]) for call in known}


def test_every_known_machine_names_the_same_calls():
    x86_64, aarch64 = architecture.KNOWN["x86_64"], architecture.KNOWN["aarch64"]
    assert x86_64.calls.keys() == aarch64.calls.keys()


@pytest.mark.parametrize("machine", architecture.KNOWN.values())
def test_registers_of_a_call_are_different_ones_that_exist(machine):
    own = (machine.number, machine.counter, *machine.arguments)
    assert len(set(own)) == len(own)
    assert max(own) < machine.words
    assert len(machine.instruction) % machine.alignment == 0


@pytest.mark.parametrize(("name", "size"), [("x86_64", 12), ("aarch64", 16)])
def test_only_x86_64_packs_the_event_of_epoll(name, size):
    assert epoll.event_layout(name).size == size


def test_what_was_tried_is_known():
    assert architecture.KNOWN.keys() >= architecture.TRIED


def test_a_machine_that_is_not_known_has_no_calls(monkeypatch):
    monkeypatch.setattr(architecture.platform, "machine", lambda: "riscv64")
    assert architecture.here() is None
    with pytest.raises(OSError, match="riscv64"):
        architecture.call("mmap")

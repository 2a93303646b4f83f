"""Machines compared, logins read, log lines kept to one line."""

import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.node.jupyter.server import _prefix, address_of, read_login
from jupyterhub_gpu_reclaim.node.requirements import (
    Machine,
    compare_images,
    compare_machines,
    instructions,
)


def machine(**changes) -> Machine:
    values = {
        "architecture": "x86_64",
        "kernel": "6.18.2-x",
        "cpu_flags": ["avx2", "sse4_2"],
    }
    return Machine(**values | changes)


@pytest.mark.parametrize(
    ("here", "codes"),
    [
        (machine(), []),
        (machine(cpu_flags=["avx2", "avx512f", "sse4_2"], kernel="7.0"), []),
        (machine(cpu_flags=["sse4_2"]), ["cpu_mismatch"]),
        (machine(architecture="aarch64"), ["cpu_mismatch"]),
        (machine(kernel="6.9.1"), ["kernel_too_old"]),
        (machine(kernel="5.10", cpu_flags=[]), ["cpu_mismatch", "kernel_too_old"]),
    ],
)
def test_compare_machines_names_what_is_missing(here, codes):
    found = list(compare_machines(machine(), here))
    assert [finding.code for finding in found] == codes
    if "cpu_mismatch" in codes and here.architecture == "x86_64":
        assert "avx2" in found[0].message


def test_compare_machines_names_the_other_kind_of_processor():
    (processor,) = compare_machines(machine(architecture="aarch64"), machine())
    assert "lacks the aarch64 instruction set" in processor.message


@pytest.mark.parametrize(
    ("there", "here", "codes"),
    [
        ("", "", []),
        ("", "a@sha256:1", []),
        ("a@sha256:1", "a@sha256:1", []),
        ("a@sha256:1", "mirror/a@sha256:1", []),
        ("sha256:1", "sha256:1", []),
        ("a@sha256:1", "a@sha256:2", ["image_mismatch"]),
        ("a@sha256:1", "", ["image_mismatch"]),
        ("a:latest", "a:other", ["image_mismatch"]),
    ],
)
def test_compare_images_goes_by_the_digest(there, here, codes):
    assert [finding.code for finding in compare_images(there, here)] == codes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx2 rep_good sse4_2", ["avx2", "sse4_2"]),
        ("isa\t: rv64imafdc", []),
    ],
)
def test_instructions_are_those_that_a_program_may_have_chosen(line, expected):
    assert instructions(f"processor\t: 0\n{line}\nprocessor\t: 1\n") == expected


@pytest.mark.parametrize(
    ("url", "port", "prefix"),
    [
        ("http://127.0.0.1:4711/user/ann/", 4711, "/user/ann/"),
        ("http://0.0.0.0:4711", 4711, "/"),
        ("http://127.0.0.1:99999/", 0, "/"),
        ("http://[half-an-address", 0, "/"),
        ("nonsense", 0, "/nonsense/"),
        ("", 0, "/"),
    ],
)
def test_read_login_takes_what_the_environment_says(url, port, prefix):
    secret = "s3cret-of-ann"
    env = {"JUPYTERHUB_API_TOKEN": secret, "JUPYTERHUB_SERVICE_URL": url, "A": "b"}
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    )
    with program:
        program.stdout.readline()
        login = read_login(program.pid)
        program.communicate(b"\n")
    assert (login.port, _prefix(login.environment), login.api_token) == (
        port,
        prefix,
        secret,
    )
    assert login.environment.keys() == env.keys() - {"A"}
    assert secret not in repr(login)


@pytest.mark.parametrize(
    "hostile",
    [
        {"JUPYTERHUB_SERVICE_PREFIX": "/ HTTP/1.1\r\nX-Mine: yes\r\n"},
        {"JUPYTERHUB_API_TOKEN": "s3cret\r\nX-Mine: yes"},
        {"JUPYTERHUB_API_TOKEN": "s\N{LATIN SMALL LETTER E WITH ACUTE}cret"},
    ],
)
def test_read_login_of_words_that_are_no_http_has_no_address(hostile):
    env = {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:4711/"} | hostile
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as program:
        program.stdout.readline()
        login = read_login(program.pid)
        program.communicate(b"\n")
    assert address_of(login, None) is None

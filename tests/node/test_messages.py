"""Messages on a kernel's channel, told apart by bytes that nobody has read yet."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from jupyterhub_gpu_reclaim.common.kernel_messages import QUIET_REQUESTS
from jupyterhub_gpu_reclaim.node.nap.messages import read


def frame(body: bytes, flags: int) -> bytes:
    if len(body) > 255:
        return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


def framed(parts: list[bytes]) -> bytes:
    *first, last = parts
    return b"".join(frame(part, 1) for part in first) + frame(last, 0)


def message(kind: str, size: int = 10) -> bytes:
    """As a client's library makes it."""
    session = Session(key=b"k")
    return framed(session.serialize(session.msg(kind, {"code": "x" * size})))


def command(name: bytes, rest: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name + rest, 4)


@pytest.mark.parametrize("kind", sorted(QUIET_REQUESTS))
def test_quiet_messages_are_passed_over(kind):
    data = message(kind) + message(kind, 1000)
    assert read(data) == ("", len(data))


@pytest.mark.parametrize("before", [b"", message("usage_request", 1000)])
def test_any_other_kind_is_found_behind_them(before):
    data = before + message("execute_request", 100_000)
    assert read(data) == ("execute_request", len(before))


def test_kind_is_known_before_the_message_is_complete():
    data = message("execute_request", 100_000)
    assert read(data[:1000]).kind == "execute_request"


@given(st.integers(0, 10_000), st.integers(300, 5000))
def test_reading_goes_on_where_it_ended(cut, size):
    quiet = message("kernel_info_request", size)
    data = quiet * 2 + message("comm_msg")
    first = read(data[: min(cut, len(quiet) * 2)])
    assert first.kind == ""
    assert first.offset in {0, len(quiet), 2 * len(quiet)}
    assert read(data, first.offset).kind == "comm_msg"


@pytest.mark.parametrize("name", [b"PING", b"PONG", b"SUBSCRIBE"])
def test_commands_of_the_connection_itself_are_passed_over(name):
    data = command(name, b"\0\0") + message("kernel_info_request")
    assert read(data) == ("", len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" + bytes(8) + b"\x7f\3\0NULL",
        command(b"READY", b"\x0bSocket-Type"),
        b"GET / HTTP/1.1\r\n",
        framed([b"ping"]),
        framed([b"a"] * 9),
        framed([b"x" * 5000, b"y"]),
        framed([b"<IDS|MSG>", b"sig"]),
        framed([b"<IDS|MSG>", b"sig", b"no json", b"{}"]),
        framed([b"<IDS|MSG>", b"sig", json.dumps({"msg_type": 5}).encode()]),
        framed([b"<IDS|MSG>", b"sig", b"{" * 70_000]),
        b"\x04\xff" + b"x" * 10 + b"\x06" + b"\xff" * 8,
    ],
)
def test_what_is_not_understood_wakes(data):
    assert read(data).kind or read(data + bytes(300)).kind


@given(st.binary(max_size=400), st.integers(0, 500))
def test_no_bytes_make_it_fail(data, offset):
    found = read(data, offset)
    assert found.offset >= offset or found.offset <= len(data)


@given(st.integers(0, 400))
def test_message_with_an_identity_before_it_is_read_as_well(cut):
    data = framed(
        [
            b"identity",
            *Session(key=b"").serialize(
                {
                    "header": {"msg_type": "debug_request"},
                    "parent_header": {},
                    "metadata": {},
                    "content": {},
                }
            ),
        ]
    )
    found = read(data[:cut])
    assert found.kind in {"", "debug_request"}
    assert read(data).kind == "debug_request"

"""Ports of suspended sessions are kept out of the kernel's hands, in namespaces."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from ipaddress import ip_address

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, ports
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port, TcpConnection
from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import (
    Reservations,
    format_ranges,
    parse_ranges,
)
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import clear, proceed
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.linux.sock_diag import Endpoint


@pytest.fixture
def sysctl(tmp_path):
    path = tmp_path / "ip_local_reserved_ports"
    path.write_text("8080,9148-9150\n")
    return path


@pytest.fixture
def kept(tmp_path, sysctl):
    return Reservations(tmp_path, sysctl=sysctl)


def tcp(*numbers: int) -> list[Port]:
    return [Port("tcp", number) for number in numbers]


@given(st.sets(st.integers(1, 65535)))
def test_ranges_what_is_printed_is_parsed(numbers):
    assert parse_ranges(format_ranges(numbers)) == numbers


def test_ranges_are_as_the_kernel_writes_them():
    assert format_ranges([3, 1, 2, 9, 7, 9]) == "1-3,7,9"
    assert format_ranges([]) == ""
    assert parse_ranges("\n") == set()


def test_parse_ranges_nonsense_is_refused():
    with pytest.raises(Refused):
        parse_ranges("80,http")


def test_reserve_release_leaves_what_others_reserved(kept, sysctl):
    kept.reserve("one", tcp(8888, 40000))
    assert sysctl.read_text() == "8080,8888,9148-9150,40000\n"
    kept.release("one")
    assert sysctl.read_text() == "8080,9148-9150\n"


def test_reserve_port_that_an_admin_had_reserved_stays_after_release(kept, sysctl):
    kept.reserve("one", tcp(8080, 8888))
    kept.reserve("two", tcp(8080))
    kept.release("one")
    kept.release("two")
    assert sysctl.read_text() == "8080,9148-9150\n"


def test_release_port_that_another_checkpoint_needs_stays(kept, sysctl):
    kept.reserve("one", tcp(8888))
    kept.reserve("two", tcp(8888, 8889))
    kept.release("one")
    assert sysctl.read_text() == "8080,8888-8889,9148-9150\n"
    kept.release("two")
    assert sysctl.read_text() == "8080,9148-9150\n"


def test_reserve_and_release_repeated_change_nothing_more(kept, sysctl):
    for _ in range(2):
        kept.reserve("one", tcp(8888))
    assert kept.checkpoints() == ["one"]
    for _ in range(2):
        kept.release("one")
    assert sysctl.read_text() == "8080,9148-9150\n"
    kept.release("never heard of")


def test_reapply_after_a_reboot_reserves_again(kept, sysctl, tmp_path):
    kept.reserve("one", tcp(8888))
    path = tmp_path / "ports.json"
    record = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**record, "boot": "another"}))
    sysctl.write_text("7777\n")
    again = Reservations(tmp_path, sysctl=sysctl)
    again.reapply()
    assert sysctl.read_text() == "7777,8888\n"
    again.release("one")
    assert sysctl.read_text() == "7777\n"


def test_reapply_forgets_checkpoints_that_are_gone(kept, sysctl):
    kept.reserve("one", tcp(8888))
    kept.reserve("two", tcp(8889))
    kept.reapply(keep=["two"])
    assert kept.checkpoints() == ["two"]
    assert sysctl.read_text() == "8080,8889,9148-9150\n"


def test_reservations_damaged_file_is_refused_not_forgotten(kept, tmp_path):
    (tmp_path / "ports.json").write_text('{"reserved": 5}')
    with pytest.raises(Refused):
        kept.reserve("one", tcp(8888))
    assert (tmp_path / "ports.json").read_text() == '{"reserved": 5}'


def test_reservations_kernel_without_the_list_is_refused(tmp_path):
    kept = Reservations(tmp_path, sysctl=tmp_path / "none" / "list")
    with pytest.raises(Refused):
        kept.reserve("one", tcp(8888))


def test_reserve_kernel_hands_out_no_such_port_but_binds_it_when_asked(tmp_path):
    """In a network namespace of its own, with a list longer than a page."""
    code = f"""
        import socket
        from pathlib import Path
        from jupyterhub_gpu_reclaim.checkpoint.sockets import ports
        from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port

        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 42999")
        kept = ports.Reservations(Path({str(tmp_path)!r}))
        mine = list(range(40001, 43000, 2))
        kept.reserve("one", [Port("tcp", n) for n in mine])
        listed = ports.read_sysctl()
        assert listed == set(mine), len(listed)
        given = []
        for _ in range(300):
            one = socket.socket()
            one.bind(("", 0))
            given.append(one)
        assert not {{one.getsockname()[1] for one in given}} & set(mine)
        explicit = socket.socket()
        explicit.bind(("", 40001))
        kept.release("one")
        assert ports.SYSCTL.read_text() == "\\n"
        print("ok")
    """
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


def test_check_free_port_that_is_taken_names_the_program():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        (finding,) = ports.check_free(os.getpid(), tcp(number))
        assert finding.code == "port_in_use"
        assert finding.retryable
        assert str(number) in finding.message
        assert f"(process {os.getpid()})" in finding.message
        other = Port("tcp", number, "127.0.0.2")
        assert ports.check_free(os.getpid(), [other]) == []
        assert ports.check_free(os.getpid(), [Port("udp", number)]) == []
    assert ports.check_free(os.getpid(), tcp(number)) == []


def test_check_free_taken_by_udp_and_v6_is_seen():
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagram,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
    ):
        datagram.bind(("::", 0))
        needed = [
            Port("udp", datagram.getsockname()[1], "127.0.0.1"),
            Port("tcp", server.getsockname()[1], "::1"),
        ]
        assert len(ports.check_free(os.getpid(), needed)) == 2


def test_check_free_own_connection_from_the_port_of_a_connection_is_no_conflict():
    """The kernel gives one port to many connections, as long as they lead elsewhere."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as mine,
        listener.accept()[0],
    ):
        local = Endpoint(ip_address("127.0.0.1"), mine.getsockname()[1])
        elsewhere = TcpConnection(local, Endpoint(ip_address("127.0.0.1"), 9))
        assert ports.check_free(os.getpid(), [], [elsewhere]) == []
        remote = Endpoint(ip_address("127.0.0.1"), listener.getsockname()[1])
        both = [TcpConnection(local, remote), TcpConnection(remote, local)]
        found = ports.check_free(os.getpid(), [], both)
        assert [one.code for one in found] == ["port_in_use"] * 2
        assert f"(process {os.getpid()})" in found[0].message
        # A port that must be bound is another matter: the kernel would refuse it.
        (found,) = ports.check_free(os.getpid(), [Port("tcp", local.port)], uid=54321)
        assert "another program of that machine" in found.message
        assert str(os.getpid()) not in found.message
        assert "If it is a program of your own" in found.hint


def test_await_free_waits_for_a_short_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
        local = Endpoint(ip_address("127.0.0.1"), mine.getsockname()[1])
        remote = Endpoint(ip_address("127.0.0.1"), listener.getsockname()[1])
        needed = [TcpConnection(local, remote)]

        def end() -> None:
            mine.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            mine.close()
            theirs.close()

        timer = threading.Timer(0.3, end)
        timer.start()
        try:
            assert ports.check_free(os.getpid(), [], needed)
            assert ports.await_free(os.getpid(), [], needed, seconds=30) == []
        finally:
            timer.join()


def test_check_free_time_wait_is_no_conflict_for_a_listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served = listener.accept()[0]
        port = listener.getsockname()[1]
        served.close()  # the first to close keeps the port in TIME_WAIT
        client.close()
    assert ports.check_free(os.getpid(), tcp(port)) == []


def test_shares_network_only_with_our_own():
    def shares(*namespace: str) -> bool:
        with subprocess.Popen(
            [*namespace, "sh", "-c", "echo up; read x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"up\n"
            answer = ports.shares_network(process.pid)
            process.communicate(b"\n")
        return answer

    assert shares()
    assert not shares("unshare", "--net")


def ended(address):
    """A connection in TIME_WAIT, from the end that keeps it; of a plain listener."""
    listener = socket.socket()  # without SO_REUSEADDR
    listener.bind(address)
    listener.listen()
    mine = socket.create_connection(listener.getsockname())
    served = listener.accept()[0]
    ends = [
        Endpoint(ip_address(one[0]), one[1])
        for one in (served.getsockname(), served.getpeername())
    ]
    served.close()  # the first to close keeps the port
    mine.close()
    listener.close()
    return TcpConnection(*ends)


def test_await_free_what_has_ended_and_nobody_has_any_more_is_no_conflict():
    there = ended(("127.0.0.1", 0))
    port = there.local.port
    with pytest.raises(OSError, match="in use"), socket.socket() as plain:
        plain.bind(("127.0.0.1", port))
    found = ports.check_free(os.getpid(), tcp(port), [there])
    assert [one.code for one in found] == ["port_in_use"]
    assert "a connection that is just ending" in found[0].message
    assert "another program" not in found[0].message
    assert ports.await_free(os.getpid(), tcp(port), [there], seconds=0) == []
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", port))


def test_await_free_connection_of_another_program_is_left_alone():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as mine,
    ):
        address, port = mine.getsockname()
        local = Endpoint(ip_address(address), port)
        remote = Endpoint(ip_address("127.0.0.1"), listener.getsockname()[1])
        # Not accepted yet, so no program has that end of it.
        needed = [TcpConnection(remote, local)]
        assert ports.await_free(os.getpid(), [], needed, seconds=0)
        served = listener.accept()[0]
        with served:
            assert mine.send(b"x") == 1
            assert served.recv(1) == b"x"


def test_return_that_fails_late_leaves_its_ports_free(places, engine):
    """As where its server does not answer: the tree has run, and is ended."""
    world = places.world()
    world("plain = socket.socket(); plain.bind(('127.0.0.1', 0)); plain.listen()")
    world("mine = socket.create_connection(plain.getsockname())")
    world("served = plain.accept()[0]")
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    pids = [process.pid for process in world.place.tree.processes]
    inet.reset_all(world.place.init_pid, pids)
    world.place.kill()
    files = image["files.img"]
    needed = inet.ports_of(files), inet.connections_of(files)
    place = places.hold()
    proceed(engine.restore(place, image, result), result.stopped)
    assert world.at(place)("mine.send(b'x'); served.recv(1)") == b"x"
    with contextlib.suppress(NotFound):  # its init ends with it
        clear(place.session, timeout=20)
    assert ports.check_free(os.getpid(), *needed) == []

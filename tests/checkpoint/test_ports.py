"""Ports of suspended sessions are kept out of the kernel's hands, in namespaces."""

import contextlib
import os
import socket
import struct
import threading
from ipaddress import ip_address

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets import abstract_names, inet, ports
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import Name
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Link, Port
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import clear, proceed
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.linux.sock_diag import Endpoint

TCP = socket.IPPROTO_TCP


def check_free(init_pid, needed, connections=(), *, uid=None):
    """As ``await_free`` finds it at one look; nothing is removed."""
    return ports._told(ports._taken(init_pid, needed, connections), uid)


def tcp(*numbers: int) -> list[Port]:
    return [Port("tcp", number) for number in numbers]


def test_check_free_port_that_is_taken_names_the_program():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        (finding,) = check_free(os.getpid(), tcp(number))
        assert finding.code == "port_in_use"
        assert finding.retryable
        assert str(number) in finding.message
        assert f"(process {os.getpid()})" in finding.message
        other = Port("tcp", number, "127.0.0.2")
        assert check_free(os.getpid(), [other]) == []
        assert check_free(os.getpid(), [Port("udp", number)]) == []
    assert check_free(os.getpid(), tcp(number)) == []


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
        assert len(check_free(os.getpid(), needed)) == 2


def test_check_free_own_connection_from_the_port_of_a_connection_is_no_conflict():
    """The kernel gives one port to many connections, as long as they lead elsewhere."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as mine,
        listener.accept()[0],
    ):
        local = Endpoint(ip_address("127.0.0.1"), mine.getsockname()[1])
        elsewhere = Link(TCP, local, Endpoint(ip_address("127.0.0.1"), 9))
        assert check_free(os.getpid(), [], [elsewhere]) == []
        remote = Endpoint(ip_address("127.0.0.1"), listener.getsockname()[1])
        both = [Link(TCP, local, remote), Link(TCP, remote, local)]
        found = check_free(os.getpid(), [], both)
        assert [one.code for one in found] == ["port_in_use"] * 2
        assert f"(process {os.getpid()})" in found[0].message
        # A port that must be bound is another matter: the kernel would refuse it.
        (found,) = check_free(os.getpid(), [Port("tcp", local.port)], uid=54321)
        assert "another program of that machine" in found.message
        assert str(os.getpid()) not in found.message
        assert "If it is a program of your own" in found.hint


def test_check_free_tells_of_some_only_and_looks_for_their_programs_alone(monkeypatch):
    """A user may have thousands taken; each look goes through all of the machine."""
    looks = []
    look = ports.holder_of
    monkeypatch.setattr(ports, "holder_of", lambda *of: looks.append(of) or look(*of))
    monkeypatch.setattr(abstract_names, "holder_of", ports.holder_of)
    with contextlib.ExitStack() as stack:
        sockets = []
        names = []
        for number in range(20):
            one = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            sockets.append(Port("tcp", one.getsockname()[1], "127.0.0.1"))
            named = stack.enter_context(socket.socket(socket.AF_UNIX))
            names.append(Name(socket.SOCK_STREAM, b"\0reclaim-many-%d" % number))
            named.bind(names[-1].name)
        assert len(check_free(os.getpid(), sockets)) == ports.MOST_TOLD
        assert len(abstract_names.check_free(os.getpid(), names)) == ports.MOST_TOLD
    assert len(looks) == 2 * ports.MOST_TOLD


def test_await_free_waits_for_a_short_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
        local = Endpoint(ip_address("127.0.0.1"), mine.getsockname()[1])
        remote = Endpoint(ip_address("127.0.0.1"), listener.getsockname()[1])
        needed = [Link(TCP, local, remote)]

        def end() -> None:
            mine.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            mine.close()
            theirs.close()

        timer = threading.Timer(0.3, end)
        timer.start()
        try:
            assert check_free(os.getpid(), [], needed)
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
    assert check_free(os.getpid(), tcp(port)) == []


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
    return Link(TCP, *ends)


def test_await_free_what_has_ended_and_nobody_has_any_more_is_no_conflict():
    there = ended(("127.0.0.1", 0))
    port = there.local.port
    with pytest.raises(OSError, match="in use"), socket.socket() as plain:
        plain.bind(("127.0.0.1", port))
    found = check_free(os.getpid(), tcp(port), [there])
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
        needed = [Link(TCP, remote, local)]
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
    files = list(images.file_entries(image["files.img"]))
    needed = inet.ports_of(files), inet.connections_of(files)
    place = places.hold()
    proceed(engine.restore(place, image, result), result.stopped)
    assert world.at(place)("mine.send(b'x'); served.recv(1)") == b"x"
    with contextlib.suppress(NotFound):  # its init ends with it
        clear(place.session, timeout=20)
    assert check_free(os.getpid(), *needed) == []

"""Sockets that lead outside are cut and forgotten; the session's own are kept."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from ipaddress import ip_address

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, options
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.linux import sock_diag
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, TcpState

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP


def entry(local, remote=None, *, state, proto=TCP, ino=1) -> bytes:
    """One inet socket of a files.img; addresses as (text, port)."""
    one = images.parse("file_entry", b"")
    one.type, one.id = images.TYPE_INETSK, ino
    isk = one.isk
    v6 = ":" in local[0]
    isk.family = socket.AF_INET6 if v6 else socket.AF_INET
    isk.ino, isk.proto, isk.state = ino, proto, state
    isk.type = socket.SOCK_STREAM if proto == TCP else socket.SOCK_DGRAM
    for field, address in (("src", local), ("dst", remote)):
        text, port = address or ("::" if v6 else "0.0.0.0", 0)
        packed = socket.inet_pton(isk.family, text)
        getattr(isk, f"{field}_addr").extend(
            struct.unpack(f"={len(packed) // 4}I", packed)
        )
        setattr(isk, f"{field}_port", port)
    return images.serialize(one)


def files_img(*entries: bytes) -> bytes:
    return images.join(images.FILES_MAGIC, entries)


def closed(image, addresses=(), cut=()) -> bytes:
    entries = list(images.file_entries(image))
    inet.close_external(entries, addresses, cut)
    return files_img(*map(images.serialize, entries))


def ended(image, addresses=(), cut=()):
    return inet.close_external(list(images.file_entries(image)), addresses, cut)


def ports_of(image):
    return inet.ports_of(images.file_entries(image))


def after(*entries: bytes, addresses=(), cut=()) -> list[tuple]:
    image = closed(files_img(*entries), {ip_address(a) for a in addresses}, cut)
    return [
        (one.isk.state, list(one.isk.src_addr), one.isk.src_port, one.isk.dst_port)
        for one in images.file_entries(image)
    ]


HERE, SERVER, CLIENT = ("127.0.0.1", 0), ("127.0.0.1", 8888), ("127.0.0.1", 40000)
LOOPBACK = struct.unpack("=I", bytes([127, 0, 0, 1]))[0]
CLOSED = (7, [0], 0, 0)


MAPPED = ("::ffff:127.0.0.1", 8888), ("::ffff:127.0.0.1", 40000)


@pytest.mark.parametrize(
    ("one", "states"),
    [
        ((SERVER, CLIENT), (1, 1)),
        ((SERVER, CLIENT), (TcpState.CLOSE_WAIT, TcpState.FIN_WAIT2)),
        (MAPPED, (1, 1)),
    ],
    ids=["plain", "half closed", "of a mapped and a plain address"],
)
def test_close_external_loopback_pair_within_the_tree_is_kept(one, states):
    image = files_img(
        entry(*one, state=states[0], ino=1),
        entry(CLIENT, SERVER, state=states[1], ino=2),
    )
    assert closed(image) == image


def test_close_external_loopback_peer_outside_the_tree_is_closed():
    listener = entry(SERVER, state=TcpState.LISTEN, ino=3)
    result = after(entry(SERVER, CLIENT, state=1), listener)
    assert result == [CLOSED, (10, [LOOPBACK], 8888, 0)]


@pytest.mark.parametrize(
    "state", [TcpState.SYN_SENT, TcpState.SYN_RECV, TcpState.TIME_WAIT]
)
def test_close_external_half_open_connection_is_closed(state):
    pair = [
        entry(CLIENT, SERVER, state=state, ino=1),
        entry(SERVER, CLIENT, state=1, ino=2),
    ]
    assert after(*pair) == [CLOSED, CLOSED]


def test_close_external_close_wait_without_peer_is_closed():
    assert after(entry(SERVER, CLIENT, state=TcpState.CLOSE_WAIT)) == [CLOSED]


def test_close_external_socket_that_was_cut_is_unbound():
    # The kernel leaves the old address on a destroyed socket, and CRIU would bind it.
    dead = entry(("127.0.0.1", 40001), state=TcpState.CLOSE, ino=5)
    assert after(dead, cut=[5]) == [CLOSED]
    assert after(dead) == [(7, [LOOPBACK], 40001, 0)]


def test_close_external_port_of_a_connection_that_has_ended_is_not_bound_again():
    one = images.parse(
        "file_entry", entry(("10.1.2.3", 40001), state=TcpState.CLOSE, ino=5)
    )
    one.isk.shutdown = 1  # as CRIU tells it
    image = files_img(images.serialize(one))
    unbound = closed(image, {ip_address("10.1.2.3")})
    (one,) = images.file_entries(unbound)
    assert ports_of(unbound) == set()
    assert one.isk.shutdown == 1  # its end has been read
    assert ended(image) == set()
    assert ended(image, (), [5]) == {5}
    (one,) = images.file_entries(closed(image, (), [5]))
    assert not one.isk.HasField("shutdown")


def test_ended_connections_are_those_of_tcp_that_lead_out():
    out = entry(("10.1.2.3", 40000), ("8.8.8.8", 443), state=1, ino=3)
    connecting = entry(CLIENT, ("8.8.8.8", 443), state=TcpState.SYN_SENT, ino=4)
    resolver = entry(("10.1.2.3", 40000), ("8.8.8.8", 53), state=1, proto=UDP, ino=5)
    new = entry(("0.0.0.0", 0), state=TcpState.CLOSE, ino=6)
    bound = entry(("10.1.2.3", 41000), state=TcpState.CLOSE, ino=7)
    listener = entry(("10.1.2.3", 9000), state=TcpState.LISTEN, ino=8)
    image = files_img(
        *pair(SERVER, CLIENT), out, connecting, resolver, new, bound, listener
    )
    assert ended(image) == {3, 4}
    assert ended(image, (), [2]) == {1, 2, 3, 4}


def words(text):
    packed = ip_address(text).packed
    return list(struct.unpack(f"={len(packed) // 4}I", packed))


@pytest.mark.parametrize(("own", "every"), [("10.1.2.3", "0.0.0.0"), ("fd00::5", "::")])
def test_close_external_listener_on_an_address_that_is_gone_listens_everywhere(
    own, every
):
    listener = entry((own, 9000), state=TcpState.LISTEN)
    assert after(listener) == [(10, words(every), 9000, 0)]
    assert after(listener, addresses=[own]) == [(10, words(own), 9000, 0)]


def pair(one, two):
    return [entry(one, two, state=1, ino=1), entry(two, one, state=1, ino=2)]


def ends(image):
    return [
        (
            list(one.isk.src_addr),
            one.isk.src_port,
            list(one.isk.dst_addr),
            one.isk.dst_port,
        )
        for one in images.file_entries(image)
    ]


def test_close_external_own_address_pair_stays_where_the_address_is():
    image = files_img(*pair(("10.1.2.3", 9000), ("10.1.2.3", 41000)))
    assert closed(image, {ip_address("10.1.2.3")}) == image


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("10.1.2.3", "127.0.0.1"),
        ("fd00::5", "::1"),
        ("::ffff:10.1.2.3", "::ffff:127.0.0.1"),
    ],
)
def test_close_external_own_address_pair_goes_to_loopback_elsewhere(address, loopback):
    image = files_img(*pair((address, 9000), (address, 41000)))
    here = {ip_address("10.9.9.9"), ip_address("127.0.0.1"), ip_address("::1")}
    moved = closed(image, here)
    there = words(loopback)
    assert ends(moved) == [(there, 9000, there, 41000), (there, 41000, there, 9000)]
    assert ended(image, here) == frozenset()
    assert len(inet.connections_of(images.file_entries(moved))) == 2
    assert closed(moved, here) == moved


def test_close_external_v6_pair_is_closed_where_there_is_no_ipv6():
    image = pair(("fd00::5", 9000), ("fd00::5", 41000))
    gone = (7, [0, 0, 0, 0], 0, 0)
    assert after(*image, addresses=["10.1.2.3", "127.0.0.1"]) == [gone, gone]


def test_close_external_pair_of_two_addresses_goes_whole_when_one_is_gone():
    image = pair(("10.1.2.3", 9000), ("10.5.5.5", 41000))
    moved = after(*image, addresses=["10.5.5.5"])
    assert moved == [(1, [LOOPBACK], 9000, 41000), (1, [LOOPBACK], 41000, 9000)]


def test_close_external_two_pairs_that_would_be_one_keep_the_first():
    kept = pair(("10.1.2.3", 9000), ("10.1.2.3", 41000))
    same = pair(("10.7.7.7", 9000), ("10.7.7.7", 41000))
    moved = [(1, [LOOPBACK], 9000, 41000), (1, [LOOPBACK], 41000, 9000)]
    assert after(*kept, *same) == [*moved, CLOSED, CLOSED]
    there = pair(("127.0.0.1", 9000), ("127.0.0.1", 41000))
    assert after(*kept, *there) == [CLOSED, CLOSED, *moved]


def test_close_external_own_pair_with_an_end_that_was_cut_does_not_move():
    image = pair(("10.1.2.3", 9000), ("10.1.2.3", 41000))
    assert after(*image, cut=[1]) == [CLOSED, CLOSED]


def test_close_external_own_address_peer_outside_the_tree_is_closed():
    half = entry(("10.1.2.3", 9000), ("10.1.2.3", 41000), state=1)
    assert after(half) == [CLOSED]
    assert after(half, addresses=["10.1.2.3"]) == [CLOSED]


def test_close_external_connected_udp_is_closed_unless_local():
    away = entry(("10.1.2.3", 40000), ("8.8.8.8", 53), state=1, proto=UDP)
    local = entry(CLIENT, ("127.0.0.1", 8125), state=1, proto=UDP)
    bound = entry(("10.1.2.3", 5353), state=7, proto=UDP)
    assert after(away, local, bound, addresses=["10.1.2.3"])[0] == CLOSED
    assert after(local) == [(1, [LOOPBACK], 40000, 8125)]
    assert after(bound) == [(7, [0], 5353, 0)]


def test_close_external_repeated_changes_nothing_more():
    image = files_img(
        entry(SERVER, CLIENT, state=1),
        entry(("10.1.2.3", 9000), state=TcpState.LISTEN, ino=2),
    )
    once = closed(image)
    assert closed(once) == once


def test_ports_of_lists_what_will_be_bound():
    image = files_img(
        entry(SERVER, state=TcpState.LISTEN, ino=1),
        entry(("::", 9000), state=TcpState.LISTEN, ino=2),
        entry(("127.0.0.1", 53), state=7, proto=UDP, ino=3),
        entry(("0.0.0.0", 0), state=7, ino=4),
    )
    assert ports_of(image) == {
        Port("tcp", 8888, "127.0.0.1"),
        Port("tcp", 9000, "::"),
        Port("udp", 53, "127.0.0.1"),
    }


@pytest.fixture
def child():
    """A process with a listener, a pair of its own and one connection to us."""
    code = """
        import socket, sys
        listener = socket.create_server(("127.0.0.1", 0))
        own = socket.create_connection(listener.getsockname())
        accepted = listener.accept()[0]
        print(listener.getsockname()[1], flush=True)
        out = socket.create_connection(("127.0.0.1", int(sys.stdin.readline())))
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                print(eval(line), flush=True)
            except OSError as error:
                print(type(error).__name__, flush=True)
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        port = int(process.stdout.readline())
        print(server.getsockname()[1], file=process.stdin, flush=True)
        server.settimeout(20)
        peer, _ = server.accept()
        assert process.stdout.readline() == "ready\n"

        def do(line: str) -> str:
            print(line, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        with peer:
            yield process.pid, port, peer, do
        process.stdin.close()


def test_cut_external_peer_outside_notices_and_own_pair_goes_on(child):
    pid, _port, peer, do = child
    cut = inet.cut_external(os.getpid(), [pid])
    assert len(cut) == 1
    peer.settimeout(20)
    with pytest.raises(ConnectionResetError):
        peer.recv(1)
    assert do("own.send(b'x')") == "1"
    assert do("accepted.recv(1)") == "b'x'"
    assert do("out.send(b'x')") in {"BrokenPipeError", "ConnectionAbortedError"}
    assert inet.cut_external(os.getpid(), [pid]) == []


def test_cut_external_connection_nobody_accepted_is_reset(child):
    pid, port, _, _ = child
    with socket.create_connection(("127.0.0.1", port)) as waiting:
        waiting.settimeout(20)
        cut = inet.cut_external(os.getpid(), [pid])
        assert cut.count(0) == 1
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)


def test_cut_external_sockets_of_others_are_left_alone(child):
    pid, _, _peer, _ = child
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        inet.cut_external(os.getpid(), [pid])
        with ours, accepted:
            assert ours.send(b"x") == 1
            assert accepted.recv(1) == b"x"


@pytest.mark.parametrize(("patience", "whole"), [(10.0, True), (0.0, False)])
def test_cut_external_waits_for_output_on_its_way_but_not_for_ever(patience, whole):
    size = 300_000
    code = (
        "import socket; s = socket.create_connection(('127.0.0.1', PORT));"
        "s.sendall(b'x' * SIZE); print('sent', flush=True); input()"
    )
    with socket.socket() as listener:
        # Less than what is sent, so that the rest waits in the sender's queue.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code = code.replace("PORT", str(port)).replace("SIZE", str(size))
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            peer = listener.accept()[0]
            assert process.stdout.readline() == b"sent\n"
            got = []

            def read() -> None:
                with contextlib.suppress(ConnectionResetError):
                    while data := peer.recv(4096):
                        got.append(data)

            reader = threading.Thread(target=read)
            if whole:
                reader.start()
            cut = inet.cut_external(os.getpid(), [process.pid], patience=patience)
            assert len(cut) == 1
            if not whole:
                reader.start()
            reader.join(60)
            peer.close()
            process.kill()
    assert (sum(map(len, got)) == size) is whole


def test_reset_all_leaves_nothing_on_the_port(child):
    pid, port, _, _do = child
    inet.reset_all(os.getpid(), [pid])
    with Diag(os.getpid()) as diag:
        left = [
            one
            for one in diag.sockets()
            if port in (one.local.port, one.remote.port) and one.state != TcpState.CLOSE
        ]
    assert left == []
    with socket.socket() as again:  # without SO_REUSEADDR
        again.bind(("127.0.0.1", port))


def tree_sockets(init_pid, pids):
    return inet.sockets_of(init_pid, inet.tree_inodes(pids))


def test_tree_sockets_of_a_foreign_network_namespace_are_seen():
    code = (
        "import socket; s=socket.socket(); s.bind(('0.0.0.0', 4711)); s.listen();"
        "print('up', flush=True); input()"
    )
    with subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"up\n"
        (one,) = tree_sockets(process.pid, [process.pid])
        assert (one.state, one.local.port) == (TcpState.LISTEN, 4711)
        assert ip_address("127.0.0.1") not in sock_diag.own_addresses(process.pid)
        process.stdin.close()
    with Diag(os.getpid()) as diag:
        assert 4711 not in {one.local.port for one in diag.sockets()}


def test_tree_sockets_of_a_session_that_is_gone_is_refused():
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(Refused):
        tree_sockets(gone.pid, [gone.pid])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_options_that_are_kept_of_a_connection_can_be_set(address):
    """The kernel notes in an accepted one what its first packet was like."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]),
        server.accept()[0] as accepted,
        socket.socket(family) as fresh,
    ):
        kept = options.read(accepted)
        assert kept
        for option in kept:
            fresh.setsockopt(*option)

"""Ports of suspended sessions are held by sockets of the agent."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import held
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import Name
from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused


@pytest.fixture
def kept(tmp_path):
    made = HeldPorts(tmp_path)
    yield made
    end(made)


def end(kept: HeldPorts) -> None:
    for checkpoint in list(kept._sockets):
        kept._close(checkpoint)


@pytest.fixture
def free():
    """Ports that nobody has, of the loopback address."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        numbers = [one.getsockname()[1], two.getsockname()[1]]
    return [Port("tcp", number, "127.0.0.1") for number in numbers]


def can_bind(port: Port) -> bool:
    """Whether another user's program can have that port, as lenient as it may be."""
    kind = socket.SOCK_STREAM if port.protocol == "tcp" else socket.SOCK_DGRAM
    is_v6 = ":" in port.address
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, kind) as one:
        os.fchown(one.fileno(), 65534, -1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            one.bind((port.address, port.port))
        except OSError:
            return False
        return True


def test_hold_keeps_others_off_until_it_is_let_go(kept, free):
    one, two = free
    kept.hold("cp", "ann", free)
    assert not can_bind(one)
    assert not can_bind(one._replace(address="0.0.0.0"))
    assert not can_bind(one._replace(address="::"))
    assert can_bind(one._replace(address="127.0.0.2"))
    assert can_bind(one._replace(protocol="udp"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((one.address, one.port))
    kept.hold("cp", "ann", free)
    assert kept.checkpoints() == ["cp"]
    kept.let_go("cp")
    assert can_bind(one)
    assert can_bind(two)
    kept.let_go("cp")
    kept.let_go("never heard of")


def test_hold_port_that_another_checkpoint_needs_stays(kept, free):
    kept.hold("one", "ann", free)
    kept.hold("two", "ann", free[:1])
    kept.let_go("one")
    assert [can_bind(port) for port in free] == [False, True]


@pytest.mark.parametrize(
    ("protocol", "address", "only_v6", "shared"),
    [
        ("tcp", "0.0.0.0", False, False),
        ("tcp", "::", False, False),
        ("tcp", "::1", True, False),
        ("udp", "127.0.0.1", False, False),
        ("udp", "::", True, False),
    ],
)
def test_hold_every_kind(kept, free, protocol, address, only_v6, shared):
    port = Port(protocol, free[0].port, address, only_v6, shared)
    kept.hold("cp", "ann", [port])
    assert not can_bind(port)


def test_hold_datagrams_that_a_program_shares_are_shared_on(kept, free):
    port = Port("udp", free[0].port, "0.0.0.0", shared=True)
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((port.address, port.port))
        kept.hold("cp", "ann", [port])
    assert kept.missing() == []
    assert can_bind(port)


def test_hold_beside_the_sockets_of_the_session(kept, free):
    """Its listener, what it has accepted, and what it has not: at no moment free."""
    address = (free[0].address, free[0].port)
    with socket.create_server(address) as listener:
        mine = socket.create_connection(address)
        served = listener.accept()[0]
        waiting = socket.create_connection(address)
        os.fchown(listener.fileno(), 65534, -1)
        kept.hold("cp", "ann", free[:1], pids=[os.getpid()])
        assert kept.missing() == []
        with served, mine, waiting:
            pass
    assert not can_bind(free[0])


def test_settle_binds_again_what_the_file_says(kept, free, tmp_path):
    kept.hold("one", "ann", free[:1])
    kept.hold("two", "ann", free[1:])
    end(kept)
    again = HeldPorts(tmp_path)
    assert [can_bind(port) for port in free] == [True, True]
    again.settle()
    assert again.checkpoints() == ["one", "two"]
    assert [can_bind(port) for port in free] == [False, False]
    end(again)


def test_port_that_somebody_has_is_missing_until_it_is_free(kept, free, tmp_path):
    kept.hold("cp", "ann", free)
    end(kept)
    again = HeldPorts(tmp_path)
    with socket.create_server((free[0].address, free[0].port)):
        again.settle()
        assert again.missing() == [free[0]]
    assert again.missing() == []
    assert not can_bind(free[0])
    end(again)


def test_port_that_somebody_has_is_no_matter_once_nobody_needs_it(kept, free):
    with socket.create_server((free[0].address, free[0].port)):
        kept.hold("cp", "ann", free)
        assert kept.missing() == [free[0]]
        kept.let_go("cp")
        assert kept.missing() == []


def test_datagrams_to_a_suspended_session_fill_no_memory(kept, free):
    """A kernel's memory for all the machine's datagrams has a limit (udp_mem)."""
    port = free[0]._replace(protocol="udp")
    kept.hold("cp", "ann", [port])
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(500):
            sender.sendto(bytes(1000), (port.address, port.port))
    (holder,) = kept._sockets["cp"].values()
    held_back = 0
    with contextlib.suppress(BlockingIOError):
        while holder.recv(2000, socket.MSG_DONTWAIT):
            held_back += 1
    assert held_back < 5


def test_strange_descriptor_in_systemds_store_keeps_no_agent_from_starting(tmp_path):
    """Another program's, or of a release that kept more: it is closed."""
    code = f"""
        import os, socket
        from pathlib import Path
        made = os.pipe()
        os.environ |= {{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2",
                        "LISTEN_FDNAMES": "one:two"}}
        os.dup2(made[0], 3)
        os.dup2(socket.socket(socket.AF_UNIX).detach(), 4)
        from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
        HeldPorts(Path({str(tmp_path)!r})).settle()
        for number in 3, 4:
            try:
                os.fstat(number)
            except OSError:
                print("closed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "closed\nclosed\n", done.stderr


def test_datagrams_are_let_go_and_taken_again(kept, free):
    datagrams = free[1]._replace(protocol="udp")
    kept.hold("cp", "ann", [free[0], datagrams])
    kept.let_datagrams_go("cp")
    assert [can_bind(free[0]), can_bind(datagrams)] == [False, True]
    kept.take_again("cp")
    assert not can_bind(datagrams)
    kept.take_again("never heard of")


def test_look_for_what_is_missing_takes_nothing_from_a_session_that_comes_back(
    kept, free
):
    """The service asks for the node's status every few seconds, also meanwhile."""
    datagrams = free[1]._replace(protocol="udp")
    name = Name(socket.SOCK_STREAM, b"\0reclaim-comes-back")
    kept.hold("cp", "ann", [free[0], datagrams], names=[name])
    kept.let_names_go("cp")
    kept.let_datagrams_go("cp")
    assert kept.missing() == []
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind(name.name)
    assert [can_bind(free[0]), can_bind(datagrams)] == [False, True]
    kept.take_again("cp")
    assert kept.names("cp") == {name}
    assert not can_bind(datagrams)


def test_budget_of_a_user_and_of_the_machine(tmp_path, free):
    kept = HeldPorts(tmp_path, per_user=3, most=4)
    kept.hold("one", "ann", free)
    assert kept.findings("ann", 1) == []
    (finding,) = kept.findings("ann", 2)
    assert finding.code == "too_many_ports"
    assert "2 ports" in finding.message
    assert kept.findings("bob", 2) == []
    (finding,) = kept.findings("bob", 3)
    assert finding.code == "ports_short"
    # What is beyond it is not held.
    more = [port._replace(address="127.0.0.2") for port in free]
    kept.hold("two", "ann", more)
    assert kept.checkpoints() == ["one"]
    assert can_bind(more[0])
    end(kept)


def test_machine_keeps_most_of_the_ports_that_connections_are_given():
    low, high = map(int, held._RANGE.read_text().split())
    assert HeldPorts(Path())._limit() <= (high - low + 1) / 4


def test_damaged_file_is_refused_not_forgotten(kept, free, tmp_path):
    (tmp_path / "ports.json").write_text('{"held": 5}')
    with pytest.raises(Refused):
        kept.hold("cp", "ann", free)
    assert (tmp_path / "ports.json").read_text() == '{"held": 5}'


def test_file_of_another_version_is_refused_and_left(kept, free, tmp_path):
    (tmp_path / "ports.json").write_text('{"version": 2, "held": {}}')
    with pytest.raises(BadRequest, match="ports has version 2"):
        kept.hold("cp", "ann", free)
    assert (tmp_path / "ports.json").read_text() == '{"version": 2, "held": {}}'


def test_shares_network_only_with_our_own():
    def shares(*namespace: str) -> bool:
        with subprocess.Popen(
            [*namespace, "sh", "-c", "echo up; read x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"up\n"
            answer = held.shares_network(process.pid)
            process.communicate(b"\n")
        return answer

    assert shares()
    assert not shares("unshare", "--net")


def test_systemd_lets_datagrams_go_too_when_the_session_has_them_again(
    tmp_path, free, monkeypatch
):
    """Else its copy would go on taking them, and each return that fails add more."""
    address = str(tmp_path / "notify")
    datagrams = free[1]._replace(protocol="udp")
    stored: dict[str, list[int]] = {}

    def hear(systemd):
        with contextlib.suppress(BlockingIOError):
            while True:
                text, sent, _, _ = socket.recv_fds(systemd, 1000, 10)
                name = text.decode().split("FDNAME=")[1].split("\n")[0]
                if b"REMOVE" in text:
                    for one in stored.pop(name, []):
                        os.close(one)
                stored.setdefault(name, []).extend(sent)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        kept = HeldPorts(tmp_path)
        kept.hold("cp", "ann", [free[0], datagrams])
        hear(systemd)
        kept.let_datagrams_go("cp")
        hear(systemd)
        assert [can_bind(free[0]), can_bind(datagrams)] == [False, True]
        kept.take_again("cp")
        hear(systemd)
        assert sum(map(len, stored.values())) == 2
        kept.let_go("cp")
        hear(systemd)
        assert sum(map(len, stored.values())) == 0


def test_systemd_keeps_the_sockets_while_the_agent_is_started_again(
    tmp_path, free, monkeypatch
):
    """It gets them with their names, and gives them to the next start."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        kept = HeldPorts(tmp_path)
        kept.hold("cp", "ann", free)
        text, stored, _, _ = socket.recv_fds(systemd, 1000, 10)
        name = dict(line.split("=") for line in text.decode().split("\n"))["FDNAME"]
        assert text.decode() == f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0"
        assert len(stored) == len(free)
        monkeypatch.delenv("NOTIFY_SOCKET")
        end(kept)
        assert [can_bind(port) for port in free] == [False, False]

        code = f"""
            import fcntl, os, sys
            from pathlib import Path
            copies = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 100) for one in sys.argv[1:]]
            for number, copy in enumerate(copies):
                os.dup2(copy, 3 + number)
            os.closerange(5, 200)
            os.environ |= {{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2",
                            "LISTEN_FDNAMES": "{name}:{name}",
                            "NOTIFY_SOCKET": "{address}"}}
            from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
            kept = HeldPorts(Path({str(tmp_path)!r}))
            kept.settle()
            assert kept.missing() == []
            print([one.fileno() for one in kept._sockets["cp"].values()], flush=True)
            assert "LISTEN_FDS" not in os.environ
            sys.stdin.read()
        """
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, stored)],
            pass_fds=stored,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as again:
            assert sorted(json.loads(again.stdout.readline())) == [3, 4]
            for one in stored:
                os.close(one)
            assert [can_bind(port) for port in free] == [False, False]
            again.communicate("")
        told = [systemd.recv(1000).decode() for _ in range(3)]
    assert told[:2] == [f"FDSTOREREMOVE=1\nFDNAME={name}"] * 2
    assert told[2] == text.decode()
    assert [can_bind(port) for port in free] == [True, True]

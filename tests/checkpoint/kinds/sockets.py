"""Sockets: their options, what waits in them, and how they are connected.

Each option of the engine's table is changed, on a socket of its own, and must come
back.
"""

from jupyterhub_gpu_reclaim.checkpoint.sockets.options import KNOWN
from tests.checkpoint.kinds import Kind

#: Sets what it can, prints all that it has set, and once more.
_OPTIONS = """
import os, select, socket, struct
kept = []
{make}
sizes = [struct.pack("=i", n) for n in (1, 0, 2, 3, 7, 60, 500, 4000, 70000)]
sizes += [struct.pack("=qq", 7, 0), struct.pack("=ii", 1, 9), struct.pack("=Q", 9000)]
sizes += [b"reno", b"cubic", bytes([1]), bytes(range(16)), b"lo", b"\\1\\1\\1\\0"]
def value(one, level, number):
    try:
        return one.getsockopt(level, number, 64)
    except OSError:
        return None
def change(level, number):
    one = make()
    usual = value(one, level, number)
    if usual is None:
        return
    for wanted in sizes:
        try:
            one.setsockopt(level, number, wanted)
        except OSError:
            continue
        if value(one, level, number) != usual:
            ready(one)
            kept.append((level, number, one))
            return
for level, numbers in {levels!r}.items():
    for number in numbers:
        change(level, number)
def see():
    print({{(level, n): value(one, level, n) for level, n, one in kept}}, flush=True)
assert len(kept) > {least}, kept
see()
input()
see()
"""
_READY = "\ndef ready(one): pass"


def _options(
    name: str, make: str, levels: list[int], least: int, note: str = ""
) -> Kind:
    numbers = {level: sorted(KNOWN[level].values()) for level in levels}
    program = _OPTIONS.format(make=make, levels=numbers, least=least)
    return Kind(f"options of {name}", "kept", note, program)


def _fresh(family: str, kind: str) -> str:
    return f"def make(): return socket.socket(socket.{family}, socket.{kind})" + _READY


_LISTENER = """
def make():
    return socket.socket()
def ready(one):
    one.bind(("127.0.0.1", 0))
    one.listen()
"""
_LATE_LISTENER = """
def make():
    return socket.create_server(("127.0.0.1", 0))
"""
_CONNECTED = """
listener, others = socket.create_server(("127.0.0.1", 0), backlog=200), []
def make():
    one = socket.create_connection(listener.getsockname())
    others.append(listener.accept()[0])
    return one
"""
GENERAL, TCP, UDP, IP, IPV6, NETLINK = 1, 6, 17, 0, 41, 270

OPTIONS = [
    _options("a UDP socket", _fresh("AF_INET", "SOCK_DGRAM"), [GENERAL, UDP, IP], 25),
    _options(
        "a UDP socket of IPv6",
        _fresh("AF_INET6", "SOCK_DGRAM"),
        [GENERAL, UDP, IP, IPV6],
        35,
    ),
    _options("a TCP socket", _fresh("AF_INET", "SOCK_STREAM"), [GENERAL, TCP, IP], 35),
    _options(
        "a TCP socket of IPv6", _fresh("AF_INET6", "SOCK_STREAM"), [TCP, IPV6], 20
    ),
    _options("a TCP listener", _LISTENER, [GENERAL, TCP, IP], 35),
    _options("a TCP listener, set later", _LATE_LISTENER + _READY, [TCP], 10),
    _options("a TCP connection", _CONNECTED + _READY, [GENERAL, TCP, IP], 35),
    _options("a UNIX stream", _fresh("AF_UNIX", "SOCK_STREAM"), [GENERAL], 12),
    _options("a UNIX datagram socket", _fresh("AF_UNIX", "SOCK_DGRAM"), [GENERAL], 12),
    _options(
        "a netlink socket", _fresh("AF_NETLINK", "SOCK_RAW"), [GENERAL, NETLINK], 15
    ),
    Kind(
        "options that few programs set",
        "lost",
        "those of raw sockets and extension headers, UDP_ENCAP, TCP_MAXSEG, …: kept are"
        " the ones of `checkpoint/sockets/options.py` and CRIU's",
    ),
]


def _program(setup: str, see: str) -> str:
    """Prints the value of ``see`` twice."""
    head = "import array, fcntl, os, select, socket, struct, threading, time\n"
    return f"{head}{setup}\nprint({see}, flush=True)\ninput()\nprint({see}, flush=True)"


def _later(setup: str, expected: str, see: str) -> str:
    """Prints what is expected, and then the value of ``see``, which takes it."""
    head = "import array, fcntl, os, select, socket, struct, threading, time\n"
    end = f"\nprint({expected}, flush=True)\ninput()\nprint({see}, flush=True)"
    return head + setup + end


_PAIR = """
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
for one in (client, server): one.settimeout(9)
"""
_UNIX = """
path = os.path.abspath("s")
listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen()
client = socket.socket(socket.AF_UNIX); client.connect(path)
"""
_RIGHTS = """
end, other = os.pipe()
os.write(other, b"through a pipe")
control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [end]))]
def take(one):
    data, control, _, _ = one.recvmsg(99, 99)
    return data, os.read(array.array("i", control[0][2])[0], 99)
"""
STATES = [
    Kind(
        "TCP connection inside the session",
        "kept",
        program=_program(
            _PAIR,
            "(client.send(b'x'), server.recv(9), server.send(b'y'), client.recv(9))",
        ),
    ),
    Kind(
        "unread data of a TCP connection",
        "kept",
        program=_later(_PAIR + "client.send(b'waits')", "b'waits'", "server.recv(99)"),
    ),
    Kind(
        "TCP connection that one end has shut down",
        "kept",
        program=_later(
            _PAIR + "client.send(b'last'); client.shutdown(socket.SHUT_WR)",
            "(b'last', b'', 2, b'ok')",
            "(server.recv(99), server.recv(9), server.send(b'ok'), client.recv(9))",
        ),
    ),
    Kind(
        "unread data of a TCP connection whose other end has been closed",
        "lost",
        "it reads as reset, not as a whole answer",
        _later(
            _PAIR + "client.send(b'last'); client.close()\n"
            "def take():\n"
            "    try: return server.recv(9)\n"
            "    except ConnectionError: return 'reset'",
            "b'last'",
            "take()",
        ),
    ),
    Kind(
        "TCP connection, reading shut down",
        "kept",
        program=_program(_PAIR + "client.shutdown(socket.SHUT_RD)", "client.recv(9)"),
    ),
    Kind(
        "TCP connection to a program outside",
        "lost",
        "it reads as reset (ECONNRESET), as after any loss of network",
    ),
    Kind(
        "TCP connection that no program has accepted yet",
        "lost",
        "it reads as reset",
        _later(
            "listener = socket.create_server(('127.0.0.1', 0))\n"
            "client = socket.create_connection(listener.getsockname())",
            "'connected'",
            "select.select([client], [], [], 1)[0] and 'reset'",
        ),
    ),
    Kind(
        "IPv6 connection inside the session",
        "kept",
        program=_program(
            "listener = socket.create_server(('::1', 0), family=socket.AF_INET6)\n"
            "client = socket.create_connection(listener.getsockname()[:2])\n"
            "server = listener.accept()[0]",
            "(client.send(b'x'), server.recv(9), server.getpeername() =="
            " client.getsockname())",
        ),
    ),
    Kind(
        "unread UDP datagrams",
        "lost",
        "UDP may lose any",
        _later(
            "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "one.bind(('127.0.0.1', 0)); one.sendto(b'x', one.getsockname())",
            "[one]",
            "select.select([one], [], [], 0.1)[0]",
        ),
    ),
    Kind(
        "socket filter (SO_ATTACH_FILTER)",
        "kept",
        program=_program(
            "import ctypes\n"
            "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "one.bind(('127.0.0.1', 0))\n"
            "code = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0))\n"
            "one.setsockopt(1, 26, struct.pack('=H6xQ', 1, ctypes.addressof(code)))\n"
            "one.setsockopt(1, 44, 1)\n"  # SO_LOCK_FILTER
            "def take_off():\n"
            "    try: one.setsockopt(1, 27, 0)\n"
            "    except OSError as error: return error.errno\n",
            "(one.sendto(b'x', one.getsockname()),"
            " select.select([one], [], [], 0.05)[0], take_off())",
        ),
    ),
    Kind(
        "UNIX stream with unread data",
        "kept",
        program=_later(
            "a, b = socket.socketpair(); a.send(b'waits')", "b'waits'", "b.recv(99)"
        ),
    ),
    Kind(
        "UNIX stream with open files under way (SCM_RIGHTS)",
        "kept",
        program=_later(
            "a, b = socket.socketpair()\n" + _RIGHTS + "a.sendmsg([b'x'], control)",
            "(b'x', b'through a pipe')",
            "take(b)",
        ),
    ),
    Kind(
        "UNIX datagrams with open files under way",
        "kept",
        "in a pair, or a socket with an abstract name",
        _later(
            "a, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
            + _RIGHTS
            + "a.sendmsg([b'x'], control)",
            "(b'x', b'through a pipe')",
            "take(b)",
        ),
    ),
    Kind(
        "unread UNIX datagrams, also empty ones",
        "kept",
        "an empty one that still waits at a second save is not in that one",
        _later(
            "a, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
            "for text in (b'1', b'', b'3'): a.send(text)",
            "[b'1', b'', b'3']",
            "[b.recv(9) for _ in range(3)]",
        ),
    ),
    Kind(
        "unread datagrams of a named UNIX socket, with their senders",
        "kept",
        program=_later(
            "b = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); b.bind('b')\n"
            "a = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); a.bind('a')\n"
            "a.sendto(b'1', 'b')\n"
            "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as c:\n"
            "    c.sendto(b'2', 'b')",
            "[(b'1', 'a'), (b'2', None)]",
            "[b.recvfrom(9) for _ in range(2)]",
        ),
    ),
    Kind(
        "UNIX packets (SOCK_SEQPACKET)",
        "kept",
        program=_later(
            "a, b = socket.socketpair(type=socket.SOCK_SEQPACKET)\n"
            "a.send(b'1'); a.send(b'22')",
            "[b'1', b'22']",
            "[b.recv(9) for _ in range(2)]",
        ),
    ),
    Kind(
        "UNIX packets behind an empty one",
        "lost",
        "most programs take an empty one for the end",
        _later(
            "a, b = socket.socketpair(type=socket.SOCK_SEQPACKET)\n"
            "a.send(b''); a.send(b'3'); b.setblocking(False)\n"
            "def take():\n"
            "    try: return b.recv(9)\n"
            "    except BlockingIOError: return None",
            "[b'', b'3']",
            "[take(), take()]",
        ),
    ),
    Kind(
        "UNIX stream that one end has shut down",
        "kept",
        program=_later(
            "a, b = socket.socketpair(); a.send(b'x'); a.shutdown(socket.SHUT_WR)",
            "(b'x', b'', 1, b'y')",
            "(b.recv(9), b.recv(9), b.send(b'y'), a.recv(9))",
        ),
    ),
    Kind(
        "UNIX listener with a path, and its connection",
        "kept",
        program=_program(
            _UNIX + "server = listener.accept()[0]",
            "(client.send(b'x'), server.recv(9), listener.getsockname() == path)",
        ),
    ),
    Kind(
        "name of an accepted UNIX connection",
        "lost",
        "getsockname of the accepted end, and getpeername of the other, are empty",
        _program(
            _UNIX + "server = listener.accept()[0]",
            "(server.getsockname(), client.getpeername())",
        ),
    ),
    Kind(
        "UNIX connection that no program has accepted yet",
        "lost",
        "one to a socket with a path finds itself cut, as where its server has ended",
        _later(
            _UNIX, "'not yet'", "select.select([listener], [], [], 0.1)[0] or 'cut'"
        ),
    ),
    Kind(
        "UNIX connection to an abstract name, not accepted yet",
        "kept",
        program=_later(
            "name = b'\\0' + os.getcwd().encode() + b' listens'\n"
            "listener = socket.socket(socket.AF_UNIX)\n"
            "listener.bind(name); listener.listen(); listener.settimeout(9)\n"
            "client = socket.socket(socket.AF_UNIX); client.connect(name)",
            "(2, b'ok')",
            "(client.send(b'ok'), listener.accept()[0].recv(9))",
        ),
    ),
    Kind(
        "UNIX connection, not accepted yet, of a client that was there before",
        "kept",
        program=_later(
            "name = b'\\0' + os.getcwd().encode() + b' listens later'\n"
            "client = socket.socket(socket.AF_UNIX); other = os.pipe()\n"
            "listener = socket.socket(socket.AF_UNIX)\n"
            "listener.bind(name); listener.listen(); listener.settimeout(9)\n"
            "client.connect(name)",
            "(2, b'ok')",
            "(client.send(b'ok'), listener.accept()[0].recv(9))",
        ),
    ),
    Kind(
        "UNIX datagram socket that leads to one that was made later",
        "kept",
        program=_later(
            "name = b'\\0' + os.getcwd().encode() + b' is later'\n"
            "client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "later = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "later.bind(name); later.settimeout(9); client.connect(name)",
            "(2, b'ok')",
            "(client.send(b'ok'), later.recv(9))",
        ),
    ),
    Kind(
        "UNIX stream with much unread",
        "kept",
        program=_later(
            "a, b = socket.socketpair(); a.setsockopt(1, 32, 1 << 22)\n"
            "a.send(bytes(range(250)) * 8000)",
            "True",
            "b.recv(1 << 24, socket.MSG_WAITALL | socket.MSG_DONTWAIT)"
            " == bytes(range(250)) * 8000",
        ),
    ),
    Kind(
        "SO_PEERCRED of a UNIX connection",
        "lost",
        "of one that was there, the other end reads as root's; new ones, to the same"
        " listener too, say what they should",
    ),
    Kind("TCP connection that is just being made", "lost", "it reads as reset"),
    Kind(
        "abstract UNIX name",
        "kept",
        "of libcuda's names the number of the pid namespace is renewed",
        _program(
            "one = socket.socket(socket.AF_UNIX)\n"
            "one.bind(b'\\0' + os.getcwd().encode())",
            "one.getsockname()",
        ),
    ),
    Kind(
        "bound UDP socket",
        "kept",
        program=_program(
            "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "one.bind(('127.0.0.1', 0)); one.settimeout(9)",
            "(one.getsockname(), one.sendto(b'x', one.getsockname()), one.recv(9))",
        ),
    ),
    Kind("ping socket (IPPROTO_ICMP)", "kept"),
    Kind(
        "netlink socket that listens to groups",
        "kept",
        program=_program(
            "one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
            "one.bind((0, 0x11))",
            "one.getsockname()[1]",
        ),
    ),
    Kind(
        "SIGIO for a socket (F_SETOWN, O_ASYNC)",
        "kept",
        program=_program(
            "a, b = socket.socketpair()\n"
            "fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(a, 10, 12)",
            "(fcntl.fcntl(a, fcntl.F_GETOWN) == os.getpid(), fcntl.fcntl(a, 11))",
        ),
    ),
]

REFUSED = [
    Kind(
        "raw socket",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "1"
        ),
    ),
    Kind(
        "packet socket (AF_PACKET)",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)", "1"
        ),
    ),
    Kind("vsock, SCTP, multipath TCP, AF_ALG, XDP, CAN", "refused"),
    Kind("kernel TLS (TCP_ULP)", "refused"),
    Kind(
        "TCP with keys (TCP_MD5SIG)",
        "refused",
        "it would come back without",
        _program(
            "one = socket.create_server(('127.0.0.1', 0))\n"
            "to = struct.pack('=HH4s120x', 2, 0, socket.inet_aton('127.0.0.7'))\n"
            "key = struct.pack('=BBHIi80s', 0, 0, 3, 0, 0, b'key')\n"
            "one.setsockopt(6, 14, to + key)",
            "1",
        ),
    ),
    Kind("eBPF program of a socket (SO_ATTACH_BPF)", "refused", "By CRIU."),
    Kind(
        "unread netlink messages",
        "refused",
        "until they have been read",
        _program(
            "one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
            "one.bind((0, 0))\n"
            "one.send(struct.pack('=IHHIIB3x', 20, 18, 0x301, 1, 0, 0))\n"
            "select.select([one], [], [])",
            "1",
        ),
    ),
    Kind(
        "urgent byte of a TCP connection (MSG_OOB), unread",
        "refused",
        "until it has been read",
        _program(_PAIR + "client.send(b'a!', 1)", "1"),
    ),
    Kind(
        "UDP data held back (UDP_CORK)",
        "refused",
        "until it is sent",
        _program(
            "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "one.setsockopt(17, 1, 1)",
            "1",
        ),
    ),
    Kind(
        "netlink socket of a group above the 32nd",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
            "one.bind((0, 0)); one.setsockopt(270, 1, 34)",
            "1",
        ),
    ),
    Kind(
        "netlink socket of a group that is not bound",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
            "one.setsockopt(270, 1, 1)",
            "1",
        ),
    ),
    Kind(
        "data on a UNIX connection that no program has accepted yet",
        "refused",
        "until it is accepted",
        _program(_UNIX + "client.send(b'waits')", "1"),
    ),
    Kind(
        "closed UNIX connection that no program has accepted yet",
        "refused",
        "until it is accepted",
        _program(_UNIX + "client.close()", "1"),
    ),
    Kind(
        "unread UNIX messages with credentials (SO_PASSCRED)",
        "refused",
        "until they have been read",
        _program(
            "a, b = socket.socketpair(); b.setsockopt(1, 16, 1); a.send(b'x')", "1"
        ),
    ),
    Kind(
        "multicast group (IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP)",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "ours = socket.inet_aton('127.0.0.1')\n"
            "group = socket.inet_aton('239.1.2.3') + ours\n"
            "one.setsockopt(socket.IPPROTO_IP, 35, group)",
            "1",
        ),
    ),
    Kind(
        "multicast group of IPv6 (IPV6_JOIN_GROUP)",
        "refused",
        program=_program(
            "one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
            "lo = socket.if_nametoindex('lo')\n"
            "group = socket.inet_pton(socket.AF_INET6, 'ff15::abcd')\n"
            "one.setsockopt(41, 20, group + struct.pack('=I', lo))",
            "1",
        ),
    ),
    Kind(
        "unread messages with open files, in a UNIX datagram socket with a path",
        "refused",
        "until they have been read",
        _program(
            "b = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); b.bind('b')\n"
            "a = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            + _RIGHTS
            + "a.sendmsg([b'x'], control, 0, 'b')",
            "1",
        ),
    ),
    *(
        Kind(
            f"UNIX socket whose file was {how}",
            "refused",
            "it would have its first name again",
            _program(
                "import os\n"
                "one = socket.socket(socket.AF_UNIX); one.bind('a'); one.listen()\n"
                + call,
                "1",
            ),
        )
        for how, call in (
            ("renamed", "os.rename('a', 'b')"),
            ("linked (supervisord)", "os.link('a', 'b'); os.unlink('a')"),
        )
    ),
    *(
        Kind(
            f"UNIX socket {which}",
            "refused",
            why,
            _program(
                "import os\n"
                "one = socket.socket(socket.AF_UNIX); os.mkdir('d')\n"
                f"{bind}; one.listen()\n{then}",
                "1",
            ),
        )
        for which, why, bind, then in (
            (
                "whose folder was renamed",
                "it would be where that was",
                "one.bind(os.getcwd() + '/d/a')",
                "os.rename('d', 'e')",
            ),
            (
                "by the name of a folder's descriptor (/proc/self/fd)",
                "its name leads nowhere without that process",
                "one.bind(f\"/proc/self/fd/{os.open('d', os.O_PATH)}/a\")",
                "",
            ),
            (
                "by a relative name with a detour (`d/../a`, a link)",
                "CRIU cannot tell its folder",
                "one.bind('d/../a')",
                "",
            ),
        )
    ),
]

KINDS: list[Kind] = [*OPTIONS, *STATES, *REFUSED]

"""session_init as pid 1 of a real pid namespace."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest

import jupyterhub_gpu_reclaim.session_init
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.support.init_words import init_words
from tests.support.ran import ran

INIT = Path(jupyterhub_gpu_reclaim.session_init.__file__).with_name("session_init.py")
NAMES = {"incarnation": "test", "user": "ann", "realm": "si"}
UNSHARE = ("unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces")


def session(mode, *command, facts=MappingProxyType({}), unshare=UNSHARE, **popen):
    words = [*unshare, sys.executable, "-I", "-S", str(INIT)]
    words += init_words(mode, *command, **{**NAMES, "relay": False, **facts})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **popen}
    return subprocess.Popen(words, text=True, **streams)


def init_pid(popen):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text()
        for child in children.split():
            if Path(f"/proc/{child}/comm").read_text() == "session-init\n":
                return int(child)
        time.sleep(0.01)
    raise AssertionError("the init did not come up")


def finish(popen):
    output, _ = popen.communicate(timeout=20)
    return popen.returncode, output


def test_start_ends_with_the_servers_status():
    assert finish(session("start", "sh", "-c", "echo out; exit 7")) == (7, "out\n")


def test_start_server_killed_ends_with_128_plus_signal():
    assert finish(session("start", "sh", "-c", "kill -9 $$"))[0] == 128 + 9


def test_start_root_killed_ends_with_128_plus_signal():
    code, _ = finish(session("start", "sh", "-c", "kill -9 $PPID; sleep 60"))
    assert code == 128 + 9


def test_start_command_missing_says_so():
    code, output = finish(session("start", "/no/such/program"))
    assert (code, output) == (
        127,
        "session_init: cannot run /no/such/program: No such file or directory\n",
    )


#: How io_uring and multipath TCP end; that other calls and sockets do not; who asks.
ASKS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def code(call, *arguments):
    return ctypes.get_errno() if call(*arguments) < 0 else 0
rings = {code(libc.syscall, number, 1, 0, 0) for number in (425, 427)}
multipath = {code(libc.socket, family, 1, 262) for family in (2, 10)}
plain = [libc.socket(family, 1, which) > 2 for family in (2, 10) for which in (0, 6)]
others = libc.syscall(39) == os.getpid() and libc.syscall(39, 2, 1, 262) > 0
print(rings == {38}, multipath == {93}, all(plain) and others, os.getuid())
"""


@pytest.mark.parametrize(
    ("words", "user", "denied", "uid"),
    [
        ((), SystemUser(54321, 54321), True, 54321),
        (("setpriv", "--no-new-privs", "--reuid", "54321"), None, True, 54321),
        (("setpriv", "--reuid", "54321"), None, False, 54321),
    ],
)
def test_start_denies_what_criu_cannot_save_where_it_may(words, user, denied, uid):
    """As root for a user; in a pod without new privileges; in one with ``sudo``."""
    python = "/usr/bin/python3"  # that user may not read our own
    command = (python, "-I", "-S", "-c", ASKS)
    text = INIT.read_text()
    popen = subprocess.Popen(
        [
            *UNSHARE,
            *words,
            python,
            "-c",
            text,
            *init_words("start", *command, system_user=user, relay=False),
        ],
        text=True,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    code, output = finish(popen)
    assert (code, output) == (0, f"{denied} {denied} True {uid}\n")


@pytest.mark.parametrize("relay", [False, True])
def test_start_pids_are_the_same_every_time(relay):
    expected = {301, 302} if relay else {301}
    for _ in range(2):
        popen = session("start", "sh", "-c", "echo $$", facts={"relay": relay})
        assert int(finish(popen)[1]) in expected


def test_start_without_writable_counter_uses_pids_up():
    # As in a container: /proc/sys is read-only.
    read_only = 'mount --bind -o ro /proc/sys /proc/sys; exec "$@"'
    unshare = (*UNSHARE, "sh", "-c", read_only, "sh")
    _, output = finish(session("start", "sh", "-c", "echo $$", unshare=unshare))
    assert int(output) == 301


def test_start_orphan_stays_below_the_root():
    script = """(setsid sh -c 'sleep 0.2; read stat </proc/$$/stat; echo $stat' &)
        sleep 0.6"""
    _, output = finish(session("start", "sh", "-c", script))
    # The fourth word of its stat is the parent: the root, not the init.
    assert output.split()[3] == "300"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_start_forwards_signal_to_server(number):
    name = signal.Signals(number).name.removeprefix("SIG")
    script = f"trap 'echo got; exit 5' {name}; echo up; while :; do sleep 0.05; done"
    popen = session("start", "sh", "-c", script)
    assert popen.stdout.readline() == "up\n"
    os.kill(init_pid(popen), number)
    assert finish(popen) == (5, "got\n")


def test_start_server_has_default_signals_and_no_extra_files():
    script = (
        "import os, signal; print([signal.getsignal(s) == signal.SIG_DFL for s in"
        " (signal.SIGTERM,)], sorted(signal.pthread_sigmask(0, [])),"
        " hex(int(open('/proc/self/status').read().split('SigIgn:')[1].split()[0], 16)"
        " & 0x7fffffff),"
        " [n for n in os.listdir('/proc/self/fd') if int(n) > 3],"
        " os.readlink('/proc/self/fd/0'), os.getsid(0) == os.getpid())"
    )
    facts = {"relay": True}
    _, output = finish(
        session("start", sys.executable, "-S", "-c", script, facts=facts)
    )
    # Python itself ignores SIGPIPE and SIGXFSZ (bits 12 and 24); bit 31 is the C
    # library's own signal 32, ignored where whoever runs the tests ignores it.
    assert output == "[True] [] 0x1001000 [] /dev/null True\n"


def test_start_as_user_drops_everything(tmp_path):
    tmp_path.chmod(0o755)
    script = "id -u; id -g; id -G; pwd; cat /proc/self/stat >/dev/null && echo mine"
    user = SystemUser(65534, 65533, (10, 20))
    facts = {"system_user": user, "chdir": "/tmp"}
    _, output = finish(session("start", "sh", "-c", script, facts=facts))
    assert output.split("\n")[:5] == ["65534", "65533", "65533 10 20", "/tmp", "mine"]


def test_start_as_user_init_stays_root():
    facts = {"system_user": SystemUser(65534, 65534)}
    popen = session("start", "sh", "-c", "echo up; sleep 60", facts=facts)
    assert popen.stdout.readline() == "up\n"
    pid = init_pid(popen)
    assert Path(f"/proc/{pid}").stat().st_uid == 0
    os.kill(pid, signal.SIGTERM)
    assert finish(popen)[0] == 128 + signal.SIGTERM


def test_start_chdir_missing_says_so():
    facts = {"chdir": "/no/such/folder"}
    code, output = finish(session("start", "true", facts=facts))
    assert code == 126
    assert "/no/such/folder" in output


def test_relay_copies_everything_to_a_reader():
    script = "seq 1 1000; echo err >&2; exit 3"
    code, output = finish(session("start", "sh", "-c", script, facts={"relay": True}))
    assert code == 3
    assert "err" in output.split()
    assert output.count("\n") == 1001


@pytest.mark.parametrize(
    ("program", "reader"),
    [
        ("seq 1 200000; exit 4", "idle"),
        ("seq 1 200000; exit 4", "gone"),
        ("(setsid yes &); sleep 0.3; exit 4", "idle"),
    ],
    ids=["nobody reads", "the reader is gone", "it never stops writing"],
)
def test_relay_never_holds_the_end_up(program, reader):
    read_end, write_end = os.pipe()
    if reader == "gone":
        os.close(read_end)
    popen = session(
        *("start", "sh", "-c", program),
        facts={"relay": True},
        stdout=write_end,
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    # Nothing is read from the pipe until the session has ended by itself.
    assert popen.wait(30) == 4
    if reader == "idle":
        os.close(read_end)


def test_relay_leaves_the_readers_pipe_blocking():
    read_end, write_end = os.pipe()
    popen = session("start", "true", facts={"relay": True}, stdout=write_end)
    assert popen.wait(60) == 0
    assert os.get_blocking(write_end)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_hold_ends_at_once_when_told(number):
    popen = session("hold")
    os.kill(init_pid(popen), number)
    assert finish(popen)[0] == 128 + number


def test_hold_ignores_helpers_and_unnamed_signals():
    popen = session("hold")
    pid = init_pid(popen)
    # A process that comes and goes inside, as CRIU does, and one that is orphaned.
    inside = ("nsenter", "--pid", "--mount", "--target", str(pid))
    subprocess.run([*inside, "sh", "-c", "setsid sleep 0.1 & exit 9"], check=False)
    os.kill(pid, signal.SIGUSR1)
    subprocess.run([*inside, "kill", "-USR1", "1"], timeout=20, check=True)
    time.sleep(0.4)
    assert popen.poll() is None
    os.kill(pid, signal.SIGTERM)
    assert finish(popen)[0] == 128 + signal.SIGTERM


def inline(*command, entry_point=(), **env):
    """Run as in a container: what it said, line by line."""
    words = [*UNSHARE, *entry_point, *command_line.inline(sys.executable)]
    done = ran(
        [*words, *init_words("start", *command)],
        env={**os.environ, **command_line.inline_environment(), **env},
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_runs_inline_as_in_a_container(locale):
    assert inline("echo", "inline", LC_ALL=locale) == (0, ["inline"])


def test_entry_point_that_prints_its_command_prints_a_line_of_the_init():
    prints = ("sh", "-c", 'echo "Executing the command: $*"; exec "$@"', "start.sh")
    code, (printed, said) = inline("echo", "inline", entry_point=prints)
    assert (code, said) == (0, "inline")
    assert printed.endswith("-- echo inline")
    assert len(printed) < 400


def test_no_program_of_the_session_inherits_the_text_of_the_init():
    code, said = inline("sh", "-c", "cat /proc/$$/environ", CANARY="still here")
    assert code == 0
    assert "still here" in said[0]
    assert command_line.INLINE_VARIABLE not in "\n".join(said)


@pytest.mark.parametrize("name", ["--", "-x", "a=b", "ünï"])
def test_arguments_are_read_from_the_command_line(name):
    user = SystemUser(1001, 100, (100, 27), no_new_privileges=True)
    arguments = command_line.InitArguments("test", name, name, system_user=user)
    words = [*command_line.inline("python3"), command_line.written(arguments)]
    assert command_line.parse([word.encode() for word in words]) == arguments


def test_source_is_python_3_7():
    ast.parse(INIT.read_text(), feature_version=(3, 7))

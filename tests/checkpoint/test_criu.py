"""CRIU found, judged and installed."""

import itertools
import os
import platform
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as module
from jupyterhub_gpu_reclaim.checkpoint.criu import install
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import HELPER_PIDS, free_pid
from jupyterhub_gpu_reclaim.cli import main
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities

OLD = "#!/bin/sh\necho 'Version: 3.17.1'\n"


def test_locate_copy_is_found_and_runs(criu):
    assert module.locate(criu.binary.parent) == criu
    assert criu.version() >= (4, 1)
    assert criu.command("check")[-1] == "check"


def test_version_is_asked_once_for_each_program(tmp_path, monkeypatch):
    """A capture needs it several times, while its session stands."""
    asked = []

    def run(command):
        asked.append(command)
        return 0, "Version: 4.2.1"

    monkeypatch.setattr(module, "run", run)
    program = tmp_path / "criu"
    program.write_text("one")
    one = module.Criu(program, program, tmp_path)
    assert one.version() == one.version() == (4, 2, 1)
    assert len(asked) == 1
    program.write_text("another")
    assert one.version() == (4, 2, 1)
    assert len(asked) == 2


def test_locate_nothing_says_how_to_install(tmp_path):
    with pytest.raises(Refused) as caught:
        module.locate(tmp_path)
    assert caught.value.reason is Reason.CRIU_MISSING
    assert "criu install" in caught.value.reason.hint


def private_copy(folder, script):
    """A private folder whose loader runs a script, whatever it is told to load."""
    (folder / "lib").mkdir(parents=True)
    (folder / "criu").write_text(script)
    loader = folder / "lib" / "ld-linux-x86-64.so.2"
    loader.write_text(script)
    loader.chmod(0o755)
    return folder


def test_locate_old_version_is_refused_with_both_versions(tmp_path):
    with pytest.raises(Refused) as caught:
        module.locate(private_copy(tmp_path / "criu", OLD))
    assert caught.value.reason is Reason.CRIU_MISSING
    assert "3.17.1" in caught.value.message


def test_locate_copy_that_does_not_run_says_why(tmp_path):
    folder = private_copy(tmp_path / "criu", "#!/bin/sh\necho broken; exit 1\n")
    with pytest.raises(Refused) as caught:
        module.locate(folder)
    assert caught.value.reason is Reason.CRIU_UNUSABLE
    assert "broken" in caught.value.message


def test_check_finds_at_most_the_capability(criu):
    findings = module.check(criu.binary.parent)
    capable = capabilities.has("SYS_RESOURCE")
    assert [f.code for f in findings] == ([] if capable else ["capability_missing"])
    assert not any(f.fatal for f in findings)


def test_check_in_a_container_with_a_read_only_proc_is_good(criu):
    """As an agent's own is; ``enter`` makes itself another one."""
    folder = criu.binary.parent
    work = (
        "from pathlib import Path;"
        "from jupyterhub_gpu_reclaim.checkpoint.criu import binary;"
        f"found = binary.check(Path({str(folder)!r}));"
        "print([one.message for one in found if one.fatal])"
    )
    shut = (
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
        " && mount -t tmpfs none /dev/net"  # nor does a container have /dev/net/tun
    )
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", f'{shut} && "$0" -c "$1"'),
            *(sys.executable, work),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_check_says_what_is_against_this_kind_of_processor(monkeypatch, criu):
    monkeypatch.setattr(module.architecture.platform, "machine", lambda: "aarch64")
    folder = criu.binary.parent
    (found,) = [o for o in module.check(folder) if o.code == "architecture_untried"]
    assert found.fatal
    assert "(aarch64)" in found.message


def test_check_missing_is_fatal(tmp_path):
    (finding,) = module.check(tmp_path)
    assert (finding.code, finding.fatal) == ("criu_missing", True)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            (
                "(00.1) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for"
                " self: Operation not permitted\n"
                "(00.1) Error (criu/tun.c:84): tun: Unable to create tun: No file\n"
                "(00.2)    301: Error (criu/files-reg.c:2): File a has bad size 1\n"
                "(00.3) Error (criu/cr-dump.c:9): Dumping FAILED.\n"
            ),
            "File a has bad size 1",
        ),
        ("(00.1) Error (criu/sockets.c:1): sockets: Can't do it.\n", "Can't do it"),
        ("(00.1) all is well\n", "no reason given"),
        ("", "no reason given"),
    ],
)
def test_first_error_is_the_first_that_matters(log, words):
    assert module.first_error(log) == words


def test_install_present_copy_is_left_alone(criu, tmp_path, capsys):
    folder = tmp_path / "criu"
    shutil.copytree(criu.binary.parent, folder)
    before = (folder / "criu").stat().st_mtime_ns
    assert main.main(["criu", "install", "--to", str(folder)]) == 0
    assert "already" in capsys.readouterr().out
    assert (folder / "criu").stat().st_mtime_ns == before


def without_rights(*command):
    """Run as uid 0 with no capability at all: less than a build of an image has."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    return subprocess.run(
        [*drop, sys.executable, *command], capture_output=True, text=True, check=False
    )


def test_install_without_rights_succeeds_and_check_names_the_right(criu, tmp_path):
    folder = tmp_path / "criu"
    shutil.copytree(criu.binary.parent, folder)
    start = (
        "import sys; from jupyterhub_gpu_reclaim.cli.main import main; sys.exit(main())"
    )
    command = ["-c", start, "criu"]
    done = without_rights(*command, "install", "--to", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert str(folder / "criu") in done.stdout
    done = without_rights(*command, "check", "--folder", str(folder))
    assert done.returncode == 1
    assert "CAP_CHECKPOINT_RESTORE" in done.stdout


@pytest.fixture
def package(criu, tmp_path):
    """A package of Debian's layout with this machine's private CRIU in it."""
    root = tmp_path / "package"
    libraries = root / "usr/lib" / f"{platform.machine()}-linux-gnu"
    shutil.copytree(criu.binary.parent / "lib", libraries)
    (root / "usr/sbin").mkdir()
    shutil.copy2(criu.binary, root / "usr/sbin/criu")
    (root / "usr/share/doc/criu").mkdir(parents=True)
    (root / "usr/share/doc/criu/copyright").write_text("License: GPL-2\n")
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        "Package: criu\nVersion: 4.2.1\nArchitecture: all\nMaintainer: us\n"
        "Description: made by a test\n"
    )
    file = tmp_path / "criu.deb"
    command = ["dpkg-deb", "--build", "-Znone", str(root), str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg")
def test_unpack_without_rights_gives_a_copy_that_runs(package, criu, tmp_path):
    work = (
        "from pathlib import Path\n"
        "from jupyterhub_gpu_reclaim.checkpoint.criu.install import unpack\n"
        f"made = unpack([Path({str(package)!r})], Path({str(tmp_path)!r}), {{}})\n"
    )
    done = without_rights("-c", work)
    assert (done.returncode, done.stderr) == (0, "")
    made = module.private_copy(tmp_path / "made")
    assert made.version() == criu.version()
    # what the licence asks of who passes it on, as our image does
    assert (tmp_path / "made/copyright/criu").read_text() == "License: GPL-2\n"


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg")
def test_unpack_program_that_does_not_run_is_refused(package, tmp_path):
    root = tmp_path / "package"
    (root / "usr/sbin/criu").write_text("not a program\n")
    command = ["dpkg-deb", "--build", "-Znone", str(root), str(package)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(Refused) as caught:
        install.unpack([package], tmp_path, {})
    assert caught.value.reason is Reason.CRIU_UNUSABLE


@pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt")
@pytest.mark.skipif(not install.KEYRING.is_file(), reason="needs Debian's keys")
def test_install_no_mirror_leaves_the_former_copy(tmp_path, capsys):
    folder = private_copy(tmp_path / "criu", OLD)
    words = ["criu", "install", "--to", str(folder), "--mirror", "http://127.0.0.1:9/"]
    assert main.main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: CRIU could not be installed: apt-get failed:")
    assert "Traceback" not in error
    assert (folder / "criu").read_text() == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["criu"]


def test_install_unsigned_index_is_refused(tmp_path, capsys):
    if not (shutil.which("apt-get") and install.KEYRING.is_file()):
        pytest.skip("needs apt and Debian's keys")
    release = tmp_path / "mirror" / "dists" / "forky"
    release.mkdir(parents=True)
    (release / "Release").write_text("Origin: Mallory\nSuite: forky\n")
    words = ["criu", "install", "--to", str(tmp_path / "criu")]
    assert main.main([*words, "--mirror", f"file://{tmp_path}/mirror"]) == 1
    error = capsys.readouterr().err
    assert "could not be installed" in error
    assert ".." not in error  # apt's complaint is a sentence, and so is ours
    assert not (tmp_path / "criu").exists()


def test_installed_loader_does_not_know_the_sessions_preload(criu):
    if not (criu.binary.parent / install.MANIFEST).is_file():
        pytest.skip("this copy was not made by criu install")
    data = criu.loader.read_bytes()
    assert module.PRELOAD not in data
    assert module.NO_PRELOAD in data
    assert module.blinded(data) == data


def test_loader_of_another_kind_is_refused():
    assert len(module.PRELOAD) == len(module.NO_PRELOAD)
    with pytest.raises(Refused, match="not as expected"):
        module.blinded(b"musl has no such file")


@given(st.lists(st.integers(1, 32767), max_size=50), st.integers(1000, 32768))
def test_free_pid_leaves_room_behind_it(pids, pid_max):
    pids = [pid for pid in pids if pid < pid_max]
    last = free_pid(pids, pid_max)
    behind = range(last + 1, min(last + 1 + HELPER_PIDS, pid_max))
    taken = sorted({*pids, 299, pid_max})
    widest = max(high - low for low, high in itertools.pairwise(taken))
    if widest > HELPER_PIDS:
        assert len(behind) == HELPER_PIDS
        assert not set(behind) & set(pids)


def test_free_pid_comes_after_the_highest():
    """And after those that CRIU gives to helpers of its own."""
    assert free_pid([300, 302, 5000], 32768) == 5003
    assert free_pid([300, 32000], 32768) == 302
    assert os.getpid() > 0

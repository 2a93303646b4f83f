"""The service ends with its parent, and is alone on its state folder."""

import select
import subprocess
import sys
import textwrap

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.service.process import lifeline


def _grandchild(code: str) -> subprocess.Popen[bytes]:
    """Python that runs the code in a child of its own and shares its output."""
    code = textwrap.dedent(code)
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    return subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)


def test_child_of_a_killed_parent_gets_sigterm():
    child = """
        import signal, sys
        from jupyterhub_gpu_reclaim.service.process.lifeline import die_with_parent
        die_with_parent()
        print("ready", flush=True)
        signal.sigtimedwait([], 60)
    """
    with _grandchild(child) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        # the pipe ends when the child, too, has ended
        assert select.select([process.stdout], [], [], 20)[0]
        assert process.stdout.read() == b""


def test_child_that_begins_after_its_hub_has_ended_is_told_at_once():
    child = """
        import os, time
        from jupyterhub_gpu_reclaim.service.process import lifeline
        hub = os.getppid()
        print("ready", flush=True)
        while os.getppid() == hub:  # it ends while our modules are being loaded
            time.sleep(0.01)
        print(lifeline.die_with_parent(hub), flush=True)
    """
    with _grandchild(child) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        process.wait()
        assert select.select([process.stdout], [], [], 20)[0]
        assert process.stdout.read() == b"True\n"


def test_parent_that_is_not_the_hub_counts_while_the_hub_lives():
    child = """
        from jupyterhub_gpu_reclaim.service.process import lifeline
        print(lifeline.die_with_parent(1))
    """
    with _grandchild(child) as process:
        assert process.stdout.read() == b"False\n"


def test_secret_is_made_once_and_private(tmp_path):
    folder = tmp_path / "a" / "state"
    secret = lifeline.secret_in(folder)
    assert len(secret) == 64
    assert lifeline.secret_in(folder) == secret
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "cookie_secret").stat().st_mode & 0o777 == 0o600


def test_state_folder_that_cannot_be_made_is_refused_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused) as caught:
        lifeline.secret_in(tmp_path / "file" / "state")
    assert str(tmp_path / "file") in caught.value.message


def test_secret_that_was_cut_short_is_refused(tmp_path):
    (tmp_path / "cookie_secret").write_bytes(b"short")
    with pytest.raises(Refused) as caught:
        lifeline.secret_in(tmp_path)
    assert "holds no secret" in caught.value.message

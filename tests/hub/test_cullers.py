"""What else ends idle servers or kernels is seen where a Hub sets it, and judged."""

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.hub import culler_hook, cullers

TIMES = cullers.IdleTimes(idle_after=900, warn_for=60, keep_limit=7 * 86400)
PROGRAM = ["python3", "-m", "jupyterhub_idle_culler"]


def said(*words, name="jupyterhub-idle-culler", **more):
    return cullers.early([{"name": name, "command": list(words), **more}], TIMES)


@pytest.mark.parametrize(
    "words",
    [
        (*PROGRAM, "--timeout=600"),
        PROGRAM,  # its default
        ("jupyterhub-idle-culler", "--timeout", "960", "--cull-every=60"),
        ("python3", "/srv/cull_idle_servers.py", "--timeout=300"),
        (*PROGRAM, "--IdleCuller.timeout=30"),
        ("sh", "-c", "exec jupyterhub-idle-culler --timeout=30"),
    ],
)
def test_culler_that_comes_before_a_suspend_is_said(words):
    [sentence] = said(*words)
    assert "before they are suspended (after 960 s)" in sentence


def test_culler_that_ends_what_was_kept_is_said_and_one_that_asks_is_not(tmp_path):
    [sentence] = said(*PROGRAM, "--timeout=86400")
    assert "kept with Keep" in sentence
    assert said(*PROGRAM, f"--timeout={8 * 86400}") == []
    file = tmp_path / "culler.py"
    file.write_text("c.IdleCuller.cull_arbiter_hook = ask\nc.IdleCuller.max_age = 9\n")
    [sentence] = said(*PROGRAM, f"--config={file}")
    assert "ends every server 9 s after its start" in sentence
    file.write_text("# c.IdleCuller.cull_arbiter_hook = spare\n")
    assert said(*PROGRAM, "--config", "culler.py", cwd=str(tmp_path))


def test_age_of_a_server_is_no_idleness_but_ends_it_as_well():
    [first, second] = said(*PROGRAM, "--max-age=7200", "--timeout=60")
    assert "7200 s after its start (--max-age)" in first
    assert "after 60 s without use" in second


def test_other_services_are_none_and_no_idle_time_of_ours_comes_too_early():
    assert said("python3", "-m", "grader", "--timeout=60", name="grades") == []
    never = cullers.IdleTimes(idle_after=0, warn_for=60, keep_limit=0)
    assert cullers.early([{"name": "c", "command": PROGRAM}], never) == []


def test_hook_knows_whose_server_it_is_also_from_an_older_hub():
    newer = {"name": "lab", "full_name": "ada@x/lab", "url": "/user/ada%40x/lab/"}
    older = {"name": "", "url": "/base/user/ada%40x/"}
    assert culler_hook._key(newer) == SessionKey("ada@x", "lab")
    assert culler_hook._key(older) == SessionKey("ada@x", "")

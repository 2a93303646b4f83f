"""What else ends idle servers or kernels is seen where a Hub sets it, and judged."""

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.hub import culler_hook, cullers

PROGRAM = ["python3", "-m", "jupyterhub_idle_culler"]


def said(*words, name="jupyterhub-idle-culler", **more):
    return cullers.unasking([{"name": name, "command": list(words), **more}])


@pytest.mark.parametrize(
    "words",
    [
        (*PROGRAM, "--timeout=600"),
        ("python3", "/srv/cull_idle_servers.py", "--timeout=300"),
        ("sh", "-c", "exec jupyterhub-idle-culler --timeout=30"),
    ],
)
def test_culler_that_does_not_ask_is_said(words):
    [sentence] = said(*words, name="ours")
    assert sentence.startswith("The service 'ours' ends servers by its own rules")


def test_other_services_and_a_culler_that_asks_are_not_said(tmp_path):
    assert said("python3", "-m", "grader", "--timeout=60", name="grades") == []
    file = tmp_path / "culler.py"
    file.write_text("c.IdleCuller.cull_arbiter_hook = ask\n# max_age = 9\n")
    assert said(*PROGRAM, f"--config={file}") == []
    assert said(*PROGRAM, "--config", "culler.py", cwd=str(tmp_path)) == []
    assert said(*PROGRAM, f"--config={file}", "--max-age=7200")
    file.write_text("# c.IdleCuller.cull_arbiter_hook = spare\n")
    assert said(*PROGRAM, f"--config={file}")


def test_hook_knows_whose_server_it_is_also_from_an_older_hub():
    newer = {"name": "lab", "full_name": "ada@x/lab", "url": "/user/ada%40x/lab/"}
    older = {"name": "", "url": "/base/user/ada%40x/"}
    assert culler_hook._key(newer) == SessionKey("ada@x", "lab")
    assert culler_hook._key(older) == SessionKey("ada@x", "")

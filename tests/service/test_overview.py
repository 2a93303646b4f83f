"""The managers' pages, the log and a user's history: who sees what."""

import asyncio
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount
from jupyterhub_gpu_reclaim.service.web.pages import STATIC_FILES

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.forms import Browser

STATIC = Path(STATIC_FILES["path"])


@pytest.fixture
def root(service):
    return Browser(service, "token-root")


async def test_managers_are_the_hubs_administrators_and_whom_a_role_names(service):
    """Neither who may stop the servers of a group, nor a program that may stop all."""
    service.control.put("ada")
    seen = {}
    for token in ("root", "hub-admin", "teacher", "culler", "bob"):
        answer = await service.call("api/sessions", f"token-{token}")
        seen[token] = len(json.loads(answer.body))
    assert seen == {"root": 1, "hub-admin": 1, "teacher": 0, "culler": 0, "bob": 0}


@pytest.mark.parametrize("path", ["all", "nodes", "store"])
async def test_managers_pages_are_for_managers(service, path):
    assert (await Browser(service, "token-ada").get(path)).code == 403
    assert (await Browser(service, "").get(path)).code == 302


async def test_summary_shows_the_present_and_what_was_given_back(service, root):
    service.control.gpus = lambda: [
        GpuCount("a", "H200", "in_use", 4),
        GpuCount("b", "H200", "in_use", 3),
        GpuCount("a", "H200", "idle", 1),
        GpuCount("a", "H200", "kept", 1),
        GpuCount("a", "H200", "freed", 1.5),
    ]
    service.control.gpu_seconds = lambda: 7200.0
    part = (await root.part("all")).body.decode()
    found = re.findall(r"<dt>([^<]*).*?</dt>\s*<dd>([^<]*)</dd>", part)
    assert [(words.strip(), value) for words, value in found[:4]] == [
        ("GPUs in use", "7"),
        ("GPUs idle", "2"),
        ("GPUs freed", "1.5"),
        ("GPU-hours given back", "2.0"),
    ]


async def test_summary_counts_every_checkpoint_that_is_in_the_store(service, root):
    service.control.stored_bytes = lambda: 3 * 10**9
    part = (await root.part("all")).body.decode()
    assert "<dd>3.0 GB</dd>" in part


async def test_form_that_a_script_sends_is_answered_in_words_not_pages(service, root):
    service.control.put("ada")
    sent = {"_xsrf": await root.xsrf(), "accept": "application/json"}
    done = await root.post("sessions/ada/-/suspend", **sent)
    assert json.loads(done.body) == "Suspending the session."
    again = await root.post("sessions/ada/-/suspend", **sent)
    assert again.code == 409
    assert "cannot be suspended" in json.loads(again.body)["message"]


async def test_page_of_one_session_tells_reasons_and_log(service):
    service.control.put("ada", "train")
    ada = Browser(service, "token-ada")
    page = (await ada.get("sessions/ada/train")).body.decode()
    assert "Why it is not suspended" in page
    assert "Kernel a is busy." in page
    assert "Suspending started." in page
    assert (await ada.get("sessions/bob/train")).code == 404
    service.control.put("ada", "train", phase=Phase.SUSPENDED)
    page = (await ada.get("sessions/ada/train")).body.decode()
    assert "Why it is" not in page


async def test_events_of_one_user_without_the_state_at_the_start(service):
    service.control.put("ada")
    service.control.put("bob")
    got: list[bytes] = []
    call = service.call(
        "api/events?user=bob&state=0", "token-root", streaming_callback=got.append
    )
    reading = asyncio.ensure_future(call)
    while not service.control.readers:
        await asyncio.sleep(0.01)
    service.control.put("ada", phase=Phase.SUSPENDED)
    service.control.put("bob", phase=Phase.SUSPENDED)
    service.control.readers[0].put_nowait(None)
    await reading
    text = b"".join(got).decode()
    assert "present" not in text
    assert '"user":"bob"' in text
    assert '"user":"ada"' not in text


async def test_log_of_all_sessions_is_the_managers(service, root):
    page = (await root.get("log")).body.decode()
    assert "History of all sessions" in page
    assert ("audit", None, 51, 0) in service.control.calls
    assert 'log?user=ada"' in page
    assert 'log?before=7"' in page
    theirs = (await root.get("log?user=ada")).body.decode()
    assert "History of the sessions of ada" in theirs
    assert "Its server was deleted" in theirs
    ada = Browser(service, "token-ada")
    assert "History of my sessions" in (await ada.get("log?user=")).body.decode()
    assert service.control.calls[-1] == ("audit", "ada", 51, 0)
    assert (await ada.get("log?user=bob")).code == 404
    assert (await ada.get("log?before=x")).code == 400


async def test_colours_are_those_that_the_hubs_pages_tell(service, root):
    assert "data-bs-theme" not in (await root.get("mine")).body.decode()
    root.cookies["gpu-reclaim-theme"] = "dark"
    page = (await root.get("mine")).body.decode()
    assert '<html lang="en" data-bs-theme="dark">' in page
    assert "/hub/logout" in page
    assert "/hub/admin" in page
    root.cookies["gpu-reclaim-theme"] = "../../evil"
    assert "evil" not in (await root.get("mine")).body.decode()


def test_library_of_the_tables_is_as_published_with_its_licence():
    folder = STATIC / "tabulator"
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    known = {name: digest for digest, name in (line.split() for line in sums)}
    files = {one.name for one in folder.iterdir()} - {"SHA256SUMS"}
    assert set(known) == files
    assert "LICENSE" in files
    for name, digest in known.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assert "Tabulator v6.5.3" in (folder / "tabulator_esm.min.mjs").read_text()[:80]

"""The managers' further pages: orders for many, store, log, settings, messages."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Failure,
    Finding,
    KeptState,
    Phase,
    SessionKey,
)
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth, NodeStatus
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import StoreUse
from jupyterhub_gpu_reclaim.service.app import ReclaimService

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.forms import Browser

EVIL = "<b>eve</b>"
PREFIX = "/services/gpu-reclaim/"


@pytest.fixture
def root(service):
    return Browser(service, "token-root")


def orders(control) -> list[tuple[str, str]]:
    return [(call[0], str(call[1])) for call in control.calls]


async def bulk(browser, accept="text/html", **fields):
    sent = {"_xsrf": await browser.xsrf(), "page": "all", **fields}
    return await browser.post("all/bulk", accept, **sent)


# --- orders for many -----------------------------------------------------------------
async def test_order_goes_to_what_is_selected_and_makes_sense(service, root):
    for name in ("ada", "bob", "cy"):
        service.control.put(name)
    service.control.put("dora", phase=Phase.SUSPENDED)
    answer = await bulk(root, order="suspend", session="ada/")
    assert answer.code == 200  # the page itself: it works without scripts
    assert "1 session is being suspended." in answer.body.decode()
    assert orders(service.control) == [("suspend", "ada/")]
    answer = await bulk(root, order="resume", session="bob/")
    assert "None of these sessions is in a state for" in answer.body.decode()


async def test_order_goes_to_all_that_the_filter_takes(service, root):
    for n in range(60):
        service.control.put(f"lab{n}")
    service.control.put("other")
    answer = await bulk(
        root, "application/json", order="keep", all="1", query="text=lab&page=2"
    )
    assert json.loads(answer.body) == "60 sessions are kept for an hour."
    assert len(orders(service.control)) == 60
    assert service.control.managed_keeps == 60


async def test_order_that_one_refuses_is_given_to_the_others(service, root):
    service.control.put("ada", phase=Phase.WARNED)  # the double wants it running
    service.control.put(EVIL)
    answer = await bulk(root, order="suspend", all="1")
    page = answer.body.decode()
    assert "1 session is being suspended. 1 not: ada/: A session that is" in page
    assert EVIL not in page


async def test_order_for_many_is_for_managers_and_names_what_is_missing(service, root):
    service.control.put("ada")
    ada = Browser(service, "token-ada")
    refused = await bulk(ada, order="suspend", session="ada/")
    assert refused.code == 403
    for fields in ({"order": "delete", "all": "1"}, {"order": "suspend"}):
        assert (await bulk(root, **fields)).code == 400
    without_proof = await root.post("all/bulk", order="suspend", all="1")
    assert without_proof.code == 401
    assert orders(service.control) == []


# --- store ---------------------------------------------------------------------------
def kept(
    name: str,
    created: float,
    stored: int,
    keeping="current",
    expires=None,
    *,
    deletable=True,
):
    return KeptState(
        id=name,
        generation=1,
        created=created,
        stored_bytes=stored,
        keeping=keeping,
        expires=expires,
        deletable=deletable,
    )


async def test_store_lists_checkpoints_in_the_order_that_is_asked(service, root):
    control = service.control
    control.put("ada", kept=[kept("c1", 100.0, 5), kept("c2", 50.0, 9, "aside", 9e9)])
    control.put(EVIL, kept=[kept("c3", 10.0, 7)])
    control.store_known = [
        StoreUse(user="ada", checkpoints=2, logical_bytes=1, stored_bytes=14)
    ]

    async def shown(query: str) -> list[str]:
        page = (await root.get(f"store?{query}")).body.decode()
        assert EVIL not in page
        found = {page.find(f'value="{name}"'): name for name in names}
        return [found[at] for at in sorted(found) if at >= 0]

    names = ("c1", "c2", "c3")
    assert await shown("") == ["c2", "c3", "c1"]
    assert await shown("order=age") == ["c3", "c2", "c1"]
    assert await shown("order=end") == ["c2", "c3", "c1"]
    assert await shown("order=nonsense&user=ada") == ["c2", "c1"]


async def test_store_offers_no_deletion_that_would_be_refused(service, root):
    names = ("current", "superseded", "aside", "wanted")
    found = [kept(name, 1.0, 5, name, deletable=name != "wanted") for name in names]
    service.control.put("ada", kept=found)
    page = (await root.get("store")).body.decode()
    assert "the session was resumed from it" in page
    offered = [name for name in names if f'value="{name}"' in page]
    assert offered == ["current", "superseded", "aside"]
    assert page.count("Delete suspended session…") == 1
    assert page.count("Delete checkpoint…") == 2


async def test_store_deletes_a_checkpoint_and_leads_back_there(service, root):
    service.control.put("ada", kept=[kept("c1", 1.0, 5)])
    answer = await root.post(
        "sessions/ada/-/delete",
        _xsrf=await root.xsrf(),
        page="store",
        query="user=ada&order=age&next=//evil.example",
        checkpoint="c1",
    )
    assert answer.code == 303
    where = f"{PREFIX}store?user=ada&order=age&done=delete"
    assert answer.headers["Location"] == where
    assert ("discard", SessionKey("ada"), "root", "c1") in service.control.calls


# --- log, settings, messages, colours ------------------------------------------------
async def test_log_of_all_sessions_is_the_managers(service, root):
    page = (await root.get("log")).body.decode()
    assert "History of all sessions" in page
    assert ("story", None, 0, 50) in service.control.calls
    assert 'log?user=anybody"' in page
    assert 'log?before=7"' in page
    await root.get("log?user=ada")
    assert service.control.calls[-1] == ("story", "ada", 0, 50)
    await Browser(service, "token-ada").get("log?user=")
    assert service.control.calls[-1] == ("story", "ada", 0, 50)
    assert (await Browser(service, "token-ada").get("log?user=bob")).code == 404


@pytest.mark.parametrize("known", [True, False])
async def test_codes_link_to_the_documentation_where_that_is_known(
    service, root, known
):
    if known:
        context = service.app.settings["context"]
        url = "https://docs.example/messages#{code}"
        service.app.settings["context"] = replace(context, message_url=url)
    lost = Failure(code="file_missing", message="The file is gone.")
    service.control.put("ada", phase=Phase.SUSPENDED, failure=lost)
    cannot = Finding(code="criu_missing", message="No CRIU.", fatal=True)
    status = NodeStatus(host="1", version="1", findings=[cannot])
    service.control.nodes_known = [NodeHealth(node="gpu-1", status=status)]
    for path, code in (
        ("all", "file_missing"),
        ("sessions/ada/-", "file_missing"),
        ("nodes", "criu_missing"),
        ("log?before=x", "invalid"),
    ):
        page = (await root.get(path)).body.decode()
        link = f'<a href="https://docs.example/messages#{code}"><code>{code}</code></a>'
        assert (link in page) is known, path
        assert f"<code>{code}</code>" in page, path


async def test_colours_are_remembered_and_can_be_left_to_the_browser(service, root):
    assert "theme/dark.css" not in (await root.get("mine")).body.decode()
    answer = await root.get("theme/dark")
    assert answer.code == 302
    assert answer.headers["Location"] == PREFIX
    page = (await root.get("mine")).body.decode()
    assert f"{PREFIX}static/theme/dark.css" in page
    assert "theme/light?next=" in page
    kept = await root.get(f"theme/dark?next={PREFIX}all%3Fstate%3Drunning")
    assert kept.headers["Location"] == f"{PREFIX}all?state=running"
    for elsewhere in ("https://evil.example/", "//evil.example/", "/hub/logout"):
        led = await root.get(f"theme/dark?next={elsewhere}")
        assert led.headers["Location"] == PREFIX
    assert "/hub/logout" in page
    assert "/hub/admin" in page
    root.cookies["gpu-reclaim-theme"] = "../../evil"
    assert "evil" not in (await root.get("mine")).body.decode()
    assert (await root.get("theme/pink")).code == 404


def test_chosen_colours_are_those_of_the_pages_own_style():
    static = Path(ReclaimService.__module__.replace(".", "/")).parent
    root = Path(__file__).parents[2] / static / "web" / "static"
    style = (root / "service.css").read_text()
    for name in ("light", "dark"):
        lines = (root / "theme" / f"{name}.css").read_text().splitlines()
        values = [line.strip() for line in lines if line.strip().startswith("--")]
        assert values
        assert all(line in style for line in values), name

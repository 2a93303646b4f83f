"""The managers' further pages: log, messages, colours, and the tables' library."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, Phase
from jupyterhub_gpu_reclaim.service.web.pages import STATIC_FILES
from tests.support.forms import Browser

STATIC = Path(STATIC_FILES["path"])
PREFIX = "/services/gpu-reclaim/"


@pytest.fixture
def root(service):
    return Browser(service, "token-root")


# --- log, settings, messages, colours ------------------------------------------------
async def test_log_of_all_sessions_is_the_managers(service, root):
    page = (await root.get("log")).body.decode()
    assert "History of all sessions" in page
    assert ("story", None, 0, 50) in service.control.calls
    assert 'log?user=ada"' in page
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
    for path, code in (("sessions/ada/-", "file_missing"), ("log?before=x", "invalid")):
        page = (await root.get(path)).body.decode()
        link = f'<a href="https://docs.example/messages#{code}"><code>{code}</code></a>'
        assert (link in page) is known, path
        assert f"<code>{code}</code>" in page, path


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

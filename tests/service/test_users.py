"""The history of a user: for that user and managers only, in pages."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.controlplane.audit import AuditPage


async def test_history_of_ones_own_sessions_comes_in_pages(service):
    response = await service.call("api/users/ada/history?limit=1&before=9")
    page = msgspec.json.decode(response.body, type=AuditPage)
    assert (response.code, page.lines[0].sentence) == (200, "It was deleted.")
    assert page.next == 7
    assert service.control.calls == [("story", "ada", 9, 1)]


@pytest.mark.parametrize(
    ("token", "status"),
    [("token-root", 200), ("token-bob", 404), ("token-service-ada", 404), ("", 401)],
)
async def test_history_is_told_to_its_user_and_managers_only(service, token, status):
    assert (await service.call("api/users/ada/history", token)).code == status
    assert len(service.control.calls) == (status == 200)


@pytest.mark.parametrize(("query", "limit"), [("limit=0", 1), ("limit=999999", 500)])
async def test_history_page_has_a_sensible_length(service, query, limit):
    assert (await service.call(f"api/users/ada/history?{query}")).code == 200
    assert service.control.calls == [("story", "ada", 0, limit)]


async def test_history_with_words_for_numbers_is_a_bad_request(service):
    assert (await service.call("api/users/ada/history?before=-1")).code == 400

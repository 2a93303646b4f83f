"""A suspended session whose Hub has as many servers as it may have."""

import pytest

from tests.support.hub import HubUnderTest


@pytest.mark.long
def test_refusal_says_that_the_session_is_kept(own_service):
    config = own_service.config + "\nc.JupyterHub.active_server_limit = 1\n"
    hub = HubUnderTest(own_service.folder, config).start()
    try:
        ann = hub.user("ann")
        hub.start_server("ann")
        own_service.suspend(hub, "ann")
        hub.api("POST", "users/bob")
        hub.start_server("bob")
        page = ann.http.get(f"{hub.url}/hub/spawn", timeout=30)
        assert page.status_code == 429
        assert "suspended and kept" in page.text
        assert "<main>" in page.text
        hub.stop_server("bob")
    finally:
        hub.close()

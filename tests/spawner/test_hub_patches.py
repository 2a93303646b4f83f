"""The one patch of JupyterHub: applied once, and only to the method that we know."""

from __future__ import annotations

import logging

from jupyterhub.app import JupyterHub

from jupyterhub_gpu_reclaim.spawner import hub_patches, mixin  # noqa: F401 - applies it


def test_patch_is_in_place_once_a_spawner_of_ours_is_imported():
    patched = JupyterHub.cleanup_oauth_clients
    assert hub_patches.apply()
    assert JupyterHub.cleanup_oauth_clients is patched
    assert patched.__wrapped__.__qualname__ == "JupyterHub.cleanup_oauth_clients"


def test_unknown_hub_is_left_alone_with_a_warning(caplog):
    class NewHub:
        def cleanup_oauth_clients(self, dry_run):
            """Other arguments than those we know."""

    class NewerHub:
        pass

    before = NewHub.cleanup_oauth_clients
    with caplog.at_level(logging.WARNING, logger="JupyterHub"):
        assert not hub_patches.apply(NewHub)
        assert not hub_patches.apply(NewerHub)
    assert NewHub.cleanup_oauth_clients is before
    assert "logs browsers out" in caplog.text

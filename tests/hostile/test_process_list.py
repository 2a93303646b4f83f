"""Other users read the command lines of all that ``configure(c)`` starts."""

from pathlib import Path

import pytest

from demo.stack import free_port
from tests.support.hub import HubUnderTest, wait_until
from tests.support.keeping_agent import AgentThatOnlyKeeps

CONFIG = """
from jupyterhub_gpu_reclaim.hub.config import configure
configure(
    c,
    agent="{agent}",
    agent_token_file="{folder}/agent.token",
    state_dir="{folder}/state",
    service_port={port},
    service_options={{
        "ReclaimService.journal_url": "sqlite:///{folder}/password-of-the-journal.sqlite",
        "ReclaimService.webhook_url": "http://127.0.0.1:1/password-of-the-webhook",
        "Rules.rules": [{{"group": "a 'quoted' one", "idle_after": 60}}],
        "ReclaimService.sample_interval": 2,
    }},
    service_environment={{"GPU_RECLAIM_TEST": "{folder}"}},
)
"""


@pytest.fixture
def hub(tmp_path):
    agent = AgentThatOnlyKeeps(tmp_path)
    (tmp_path / "agent.token").write_text("password-of-the-agent")
    config = CONFIG.format(agent=agent.address, folder=tmp_path, port=free_port())
    hub = HubUnderTest(tmp_path, config)
    try:
        yield hub.start()
    finally:
        hub.close()
        agent.close()


def test_command_lines_hold_no_secret_and_the_settings_hold(hub):
    wait_until(hub.service_ready, 60, hub.log)
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in hub.marked()]
    assert any("jupyterhub_gpu_reclaim.service" in line for line in lines)
    files = [hub.folder / "state" / f"{name}.token" for name in ("spawner", "service")]
    secrets = ["password-of", *(file.read_text().strip() for file in files)]
    for secret in secrets:
        assert not any(secret in line for line in lines)
        assert secret not in hub.log()
    assert (hub.folder / "password-of-the-journal.sqlite").exists()
    for pid in hub.marked():
        if (
            b"jupyterhub_gpu_reclaim.service"
            in Path(f"/proc/{pid}/cmdline").read_bytes()
        ):
            assert Path(f"/proc/{pid}/environ").stat().st_mode & 0o077 == 0

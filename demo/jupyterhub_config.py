"""The demo's Hub: a dummy login, sessions of root, and a very short idle time.

Run by ``demo/stack.py``, which writes ``settings.json``. A real Hub's configuration
is shorter: see README.md.
"""

import json
import os
from pathlib import Path

from jupyterhub.services.service import _ServiceSpawner

from jupyterhub_gpu_reclaim.hub.config import configure
from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner

folder = Path(os.environ["GPU_RECLAIM_DEMO"])
settings = json.loads((folder / "settings.json").read_text())

c = get_config()  # type: ignore[name-defined] # noqa: F821
c.JupyterHub.bind_url = f"http://127.0.0.1:{settings['port']}{settings['base_url']}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{settings['hub_port']}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{settings['proxy_api_port']}"
c.JupyterHub.db_url = f"sqlite:///{folder / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(folder / "proxy.pid")
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = settings["password"]
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = False  # sessions outlive a restart of the Hub
c.Spawner.environment = {
    "GPU_RECLAIM_DEMO": str(folder),
    **settings.get("environment", {}),
}
c.Spawner.default_url = settings.get("default_url", "/lab")
c.Spawner.cmd = settings.get("server", ["jupyterhub-singleuser"])
# How often the Hub looks whether a server lives.
c.Spawner.poll_interval = settings.get("poll_interval", 30)
c.Spawner.http_timeout = settings.get("http_timeout", 120)
# How long a Hub that starts waits for sessions that do not answer, before it serves.
c.JupyterHub.init_spawners_timeout = settings.get("init_spawners_timeout", 10)

configure(
    c,
    agent=f"unix:{folder / 'agent.sock'}",
    agent_token_file=str(folder / "agent.token"),
    state_dir=str(folder / "service"),
    service_port=settings["service_port"],
    service_environment={"GPU_RECLAIM_DEMO": str(folder)},
    idle_after=settings.get("idle_after", 60),
    sample_interval=settings.get("sample_interval", 2),
    min_age=settings.get("min_age", 0),
    cool_down=settings.get("cool_down", 0),
    warn_for=settings.get("warn_for", 2),
    event_log=str(folder / "events.jsonl"),
    **settings.get("options", {}),
)
# The Hub looks every 30 s whether its services live; who kills one does not wait.
_ServiceSpawner.poll_interval = settings.get("service_check", 30)
# Here sessions run as root, in homes of the demo's own: the demo makes no users.
c.ReclaimLocalSpawner.realm = str(folder)
c.ReclaimLocalSpawner.run_as_hub_user = True
ReclaimLocalSpawner.homes = str(folder / "homes" / "{username}")

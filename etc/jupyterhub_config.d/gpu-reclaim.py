"""JupyterHub configuration: suspend sessions that nobody uses on this machine.

Load it at the end of ``jupyterhub_config.py`` with ``load_subconfig(its path)``.
With The Littlest JupyterHub put it into ``/opt/tljh/config/jupyterhub_config.d/``.
It adds to what is configured already and overwrites nothing.
"""

from jupyterhub_gpu_reclaim.hub.config import configure

c = get_config()  # type: ignore[name-defined] # noqa: F821
configure(
    c,
    idle_after=30 * 60,  # seconds without use
    agent="unix:/run/jupyterhub-gpu-reclaim/agent.sock",
    agent_token_file="/var/lib/jupyterhub-gpu-reclaim/agent.token",  # noqa: S106
)

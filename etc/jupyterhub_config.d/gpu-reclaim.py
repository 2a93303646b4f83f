"""JupyterHub configuration: suspend sessions that nobody uses on this machine.

Copy these lines to the end of ``jupyterhub_config.py``, where they add to what is
configured already and overwrite nothing. Do not load them with ``load_subconfig``: a
file that is loaded so has a configuration of its own, and its lists (services, roles,
template paths) replace those of the rest. The Littlest JupyterHub needs no such file:
docs/how-to/littlest-jupyterhub.md.
"""

from jupyterhub_gpu_reclaim.hub.config import configure

c = get_config()  # type: ignore[name-defined] # noqa: F821
configure(
    c,
    idle_after=30 * 60,  # seconds without use
    agent="unix:/run/jupyterhub-gpu-reclaim/agent.sock",
    agent_token_file="/var/lib/jupyterhub-gpu-reclaim/agent.token",  # noqa: S106
)

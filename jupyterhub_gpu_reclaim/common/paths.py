"""Paths of files that several programs look for."""

from __future__ import annotations

#: The agent's settings; read where it is there, by the agent and by ``store``.
AGENT_FILE = "/etc/jupyterhub-gpu-reclaim/agent.py"

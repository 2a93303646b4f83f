# ruff: noqa: ERA001, S105 - settings to choose from; a path is no password
"""Sample settings of jupyterhub-gpu-reclaim-agent, for /etc/jupyterhub-gpu-reclaim/.

Every setting here has the value it has without this file; change what differs. All of
them, with what they do and cost: ``jupyterhub-gpu-reclaim-agent --help-all``.
"""

c = get_config()  # noqa: F821 traitlets defines it

# Where the Hub's service reaches the agent. A socket file is for a Hub on this machine
# that is run by root; for another one use "ADDRESS:PORT" with certificate and key.
c.AgentApp.listen = "unix:/run/jupyterhub-gpu-reclaim/agent.sock"
# c.AgentApp.listen = "10.0.0.5:8765"
# c.AgentApp.certificate = "/etc/jupyterhub-gpu-reclaim/agent.pem"
# c.AgentApp.private_key = "/etc/jupyterhub-gpu-reclaim/agent.key"

# Made at the first start. The service needs the same file (or its contents).
c.AgentApp.token_file = "/var/lib/jupyterhub-gpu-reclaim/agent.token"

# Saved sessions: as large as half of the memory of all that may be suspended at once,
# and as secret as their memory.
c.AgentApp.store_dir = "/var/lib/jupyterhub-gpu-reclaim/store"

# Records of what is in hand; small, and must survive a reboot.
c.AgentApp.state_dir = "/var/lib/jupyterhub-gpu-reclaim/agent"

# How long a session may stand still while its memory is saved, in seconds.
c.AgentApp.dump_seconds = 1800

# ruff: noqa: ERA001, S105 - settings to choose from; a path is no password
"""Sample settings of jupyterhub-gpu-reclaim-agent, for /etc/jupyterhub-gpu-reclaim/.

Every setting here has the value it has without this file; change what differs. All of
them, with what they do and cost: ``jupyterhub-gpu-reclaim-agent --help-all``.
"""

c = get_config()  # noqa: F821 traitlets defines it

# Where the Hub's service reaches the agent. A socket file is for a Hub on this machine
# that is run by root; for another one use "ADDRESS:PORT" with certificate and key:
# there is no plain HTTP.
c.AgentApp.listen = "unix:/run/jupyterhub-gpu-reclaim/agent.sock"
# c.AgentApp.listen = "10.0.0.5:8765"
# c.AgentApp.certificate = "/etc/jupyterhub-gpu-reclaim/agent.pem"
# c.AgentApp.private_key = "/etc/jupyterhub-gpu-reclaim/agent.key"

# Made at the first start. The service needs the same file (or its contents).
c.AgentApp.token_file = "/var/lib/jupyterhub-gpu-reclaim/agent.token"

# Suspended sessions, encrypted: as large as half of the memory of all that may be
# at once. A folder, or an object store with its login from the environment or a file.
c.AgentApp.store_url = "/var/lib/jupyterhub-gpu-reclaim/store"
# c.AgentApp.store_url = "s3://bucket/prefix"
# c.AgentApp.store_options = {"region": "eu-central-1"}
# c.AgentApp.store_options_file = "/etc/jupyterhub-gpu-reclaim/s3.json"

# Made at the first start. If you lose it, you lose every suspended session: copy it.
c.AgentApp.master_key_file = "/var/lib/jupyterhub-gpu-reclaim/master.key"

# How long a session may stand still while its memory is saved, in seconds.
c.AgentApp.dump_seconds = 1800

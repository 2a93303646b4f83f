"""The command ``jupyterhub-gpu-reclaim``: sessions, the store, CRIU, configuration."""

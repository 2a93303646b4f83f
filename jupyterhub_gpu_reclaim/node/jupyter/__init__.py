"""A session's Jupyter server: its login, and how it is woken after a restore."""

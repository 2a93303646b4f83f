"""What runs in the Hub's process: its configuration, the spawners, the pages.

``config.configure`` is all that a ``jupyterhub_config.py`` calls. Nothing here imports
the node's side, or the control plane directly.
"""

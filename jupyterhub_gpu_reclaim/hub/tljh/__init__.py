"""The Littlest JupyterHub: its plugin, and its sessions made suspendable.

``plugin`` is the entry point ``tljh``. It reads the keys below ``gpu_reclaim`` of
``tljh-config``, and adds ours when the Hub has read its whole configuration,
``jupyterhub_config.d`` included. If sessions would lose a setting with our spawner,
that is reported, and TLJH's own spawner stays. Only ``spawner`` imports TLJH. Read
next: ``plugin``, then ``docs/how-to/littlest-jupyterhub.md``.
"""

"""The Littlest JupyterHub: its plugin, and its sessions made suspendable.

``plugin`` is what TLJH finds by the entry point ``tljh``. It reads the keys below
``gpu_reclaim`` of ``tljh-config``, and adds ours when the Hub has read its whole
configuration, ``jupyterhub_config.d`` included. ``settings`` compares that with what
sessions of ours can keep; what they would lose is said by name, and then TLJH's own
spawner stays. ``spawner`` makes users as TLJH does, with SystemdSpawner's settings.

Only ``spawner`` imports TLJH. Read next: ``plugin``, then
``docs/how-to/littlest-jupyterhub.md``.
"""

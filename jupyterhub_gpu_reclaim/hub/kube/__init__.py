"""Sessions in pods: KubeSpawner's, with the session's init in them.

``spawner`` is the class that a ``jupyterhub_config.py`` names. ``pod`` adds the init to
KubeSpawner's pod, before the server's command or alone, to hold the place of a restore.

Two pods never use one volume: a pod counts as ended when the kubelet has reported its
containers dead, and none is deleted by force. A pod that could not be suspended, or
cannot hold a place, is refused with a sentence. Read next: ``spawner``, then
``docs/explanation/pods.md``.
"""

"""Sessions in pods: KubeSpawner's, with the session's init in them.

``spawner`` is the class that a ``jupyterhub_config.py`` names. ``pod`` adds the init to
the pod that KubeSpawner would make, either before the server's command or alone, to
hold the place of a restore. ``pod_events`` reads whether a pod lives and what it waits
for.

Two pods never use one volume: a pod counts as ended when the kubelet has reported its
containers dead, and none is deleted by force. A pod that could not be suspended, or
that cannot hold a place, is refused with a sentence.

Read next: ``spawner``, then ``docs/explanation/pods.md``. When to start or release is
decided in ``hub.spawner``.
"""

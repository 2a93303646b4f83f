"""Sessions on the Hub's own machine: processes in namespaces of their own.

``spawner`` starts what JupyterHub's ``LocalProcessSpawner`` would start, through
``launch``, which runs ``session_init/launcher.py`` and reads its report. ``processes``
finds a session's init again, and signals and ends it.

A session outlives a restart of the Hub. It is identified by pid, start time and boot,
so a process that was given its pid later is never touched. A launch that fails or takes
too long is ``Refused``, in the launcher's words.

Read next: ``spawner``, then ``session_init``. When to start or release is decided in
``hub.spawner``.
"""

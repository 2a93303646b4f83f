"""Sessions on the Hub's own machine: processes in namespaces of their own.

A session outlives a restart of the Hub. It is identified by pid, start time and boot,
so a process that gets its pid later is never touched. A launch that fails or takes too
long is ``Refused``, in the launcher's words. Read next: ``spawner``, ``session_init``.
"""

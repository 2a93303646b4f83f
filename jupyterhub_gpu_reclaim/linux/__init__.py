"""Linux as the node sees it: /proc, control groups, namespaces, sockets, ptrace.

Each module reads or does one thing of the kernel's interface and decides nothing.
``procfs`` reads one process; ``processes``, ``cgroups`` and ``mounts`` know sessions,
as an init and its tree. ``beneath`` opens paths that users own; ``ptrace`` and
``descriptors`` reach into a process; ``sock_diag`` and ``netns`` know its sockets.
``host`` gives the host's view to an agent in a container.

``processes`` names a process by pid and start time, so a reused pid is never touched.
One that has ended reads as nothing in ``procfs``, not as an error. ``beneath`` resolves
no path out of the folder that it was given. Nothing here runs CRIU or knows
checkpoints.

Read next: ``processes``, then ``checkpoint``, where these calls are put together.
"""

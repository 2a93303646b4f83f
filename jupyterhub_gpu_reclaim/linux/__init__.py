"""Linux as the node sees it: /proc, control groups, namespaces, sockets, ptrace.

Each module reads or does one thing of the kernel's interface and decides nothing.
``processes`` names a process by pid and start time, so a reused pid is never touched.
One that has ended reads as nothing in ``procfs``, not as an error. ``beneath`` resolves
no path out of the given folder. Nothing here runs CRIU or knows checkpoints.

Read next: ``processes``, then ``checkpoint``, where these calls are put together.
"""

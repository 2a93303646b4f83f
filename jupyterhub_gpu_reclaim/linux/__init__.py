"""Linux as the node sees it: /proc, control groups, namespaces, sockets, ptrace.

Each module reads or does one thing of the kernel's interface and judges nothing.
``processes``, ``cgroups`` and ``mounts`` know what a session's init and tree are;
nothing here knows CRIU or checkpoints, which are handled in ``checkpoint``.
"""

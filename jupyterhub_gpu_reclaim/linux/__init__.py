"""Linux as the node sees it: /proc, control groups, namespaces, sockets, ptrace.

Each module reads or does one thing of the kernel's interface and judges nothing.
``processes``, ``cgroups`` and ``mounts`` know sessions, as an init and its tree;
nothing here runs CRIU or knows checkpoints, which are handled in ``checkpoint``.
"""

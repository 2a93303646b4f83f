"""Linux as the node sees it: /proc, control groups, namespaces, sockets, ptrace.

Each module reads or does one thing of the kernel's interface and judges nothing.
Nothing here knows sessions, CRIU or checkpoints; whatever does stands in
``checkpoint``.
"""

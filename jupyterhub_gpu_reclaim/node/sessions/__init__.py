"""The sessions of this node: found on each call, never registered; state and use.

All of it only reads, so a restart of the agent loses nothing. No session can pose as
another: on a machine only an init of root counts, in a pod the kernel's and the
service's facts must agree with what the init claims. Otherwise the answer is
``unknown_session``.

Read next: ``placements``, then "How a session is found on a node" in
``docs/explanation/architecture.md``.
"""

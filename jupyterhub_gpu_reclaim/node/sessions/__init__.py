"""The sessions of this node: found on each call, never registered; state and use.

``placements`` finds the inits in ``/proc``: of processes beside the Hub, or in pods;
``docker_placements`` in Docker's containers, with ``docker_engine``'s word for them.
``placement_kinds`` chooses among them.
``trees`` derives a session's state from its processes and its record; ``samples``
samples every session.

All of it only reads, so a restart of the agent loses nothing. No session can pose as
another: on a machine only an init of root counts, in a pod what kernel and service say
must agree with what the init claims. Otherwise the answer is ``unknown_session``.

Read next: ``placements``, then "How a session is found on a node" in
``docs/explanation/architecture.md``.
"""

"""The Hub's service: policies, control plane, API and pages.

``process`` keeps the address and runs the service behind it; ``app`` is the service,
and wires settings (``settings``), clients (``clients``), policy and control plane.
``api`` and ``web`` answer programs and people. ``events`` and ``notices`` tell others
what happened, ``metrics`` counts it for Prometheus.

No failure here ends the Hub (law 10). With a wrong setting, or without its
journal, the service still answers, says why, and leaves every session alone. Operations
under way go on at the agents, and the next service settles them (law 6).

Read next: ``app`` and ``process``, then ``controlplane`` and
``docs/explanation/architecture.md``.
"""

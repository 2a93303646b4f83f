"""The Hub's service: policies, control plane, API and pages.

``app`` wires settings, clients, policy and control plane. ``api`` and ``web`` answer
programs and people, ``event_log`` and ``notices`` tell others what happened.

No failure here ends the Hub (law 10). With a wrong setting, or without its
journal, the service still answers, says why, and leaves every session alone. Operations
under way go on at the agents, and the next service settles them (law 6).

Read next: ``app`` and ``process``, then ``controlplane``.
"""

"""``jupyterhub-gpu-reclaim-service``: the program that the Hub runs as its service.

The only place of the Hub's side that wires: settings, journal, clients, policy,
controller, routes. It is run by the Hub as a managed service (the Hub gives it its
address and its token in the environment) and ends with it.
"""

from __future__ import annotations


def main() -> None:
    """Run the service until the Hub ends it; exit status 1 with a sentence if not."""

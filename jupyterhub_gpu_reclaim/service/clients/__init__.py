"""Clients of the outside world: Hub, agents, Kubernetes, Prometheus."""

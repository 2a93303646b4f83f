"""Clients of the outside world: Hub, agents, Kubernetes.

``hub`` and ``agent`` are the control plane's ``Hub`` and ``Agent`` over HTTP. In a
cluster ``agent_router`` is the ``Agent`` instead: ``kubernetes`` talks to the API
server, ``informer`` follows pods, and ``agents`` has a client for each node.

``hub``, ``agent`` and ``kubernetes`` decide and repeat nothing: no answer in time is
``Unreachable``, and a refusal is raised in the far part's own words.

Read next: ``agent`` and ``agent_router``, then ``controlplane/interfaces.py`` for
what each call promises.
"""

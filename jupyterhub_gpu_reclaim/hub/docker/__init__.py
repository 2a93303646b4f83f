"""Sessions in containers of the machine's Docker.

``spawner`` makes, watches and ends them with DockerSpawner, ``container`` adds the
session's init to the request. The node's agent finds them by their labels
(``node/sessions/docker_placements.py``). Next: ``spawner``, ``docs/how-to/docker.md``.
"""

"""Sessions in containers of the machine's Docker.

``spawner`` makes, watches and ends them with DockerSpawner, ``container`` puts the
session's init into what Docker is asked for. The node's agent finds them by the labels
in that (``node/sessions/docker_placements.py``).

Read next: ``spawner``, then ``docs/how-to/docker.md``.
"""

"""NVIDIA's DCGM exporter as a second source of the GPU use of pods, beside the agents.

``settings`` makes the ``source``, which asks Prometheus without delaying any sample;
``series`` reads the answers, and leaves unknown what cannot be known.
"""

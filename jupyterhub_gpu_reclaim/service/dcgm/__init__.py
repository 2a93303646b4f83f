"""NVIDIA's DCGM exporter as a second source of the GPU use of pods, beside the agents.

``settings`` makes the ``source``, which asks Prometheus at each round of samples and
completes them with its answer; ``series`` reads that answer. Without an address set,
there is no source.

No sample waits for Prometheus: a late answer counts in the next round, and values that
are too old do not count. What cannot be known stays unknown, such as which of several
pods on one card has worked (law 5). If Prometheus does not answer, the agents' own
values stand.

Read next: ``source``, then "How use is measured" in ``docs/explanation/gpu.md``.
"""

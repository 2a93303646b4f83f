"""From samples to decisions: the sampler, warnings, preemption, per-session policy.

The policies themselves are in ``policy``, which does not import this room.
"""

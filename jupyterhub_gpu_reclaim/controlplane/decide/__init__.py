"""From samples to decisions: the sampler, the judge, warnings, preemption.

``judge`` alone asks the policy, with a snapshot of row, usage and rules. The policies
themselves are in ``policy``, which does not import this room.
"""

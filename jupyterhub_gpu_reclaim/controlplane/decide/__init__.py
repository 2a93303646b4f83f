"""From samples to decisions: windows of samples, warnings, preemption, keep quotas.

The policies themselves are in ``policy`` and know nothing of this room.
"""

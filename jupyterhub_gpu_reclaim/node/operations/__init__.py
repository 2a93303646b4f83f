"""Runs operations on sessions: one at a time for each, with a durable record.

``operations`` starts an operation, and lets any number of callers follow its steps: the
same order twice attaches to the first, or hears how it ended. ``records`` keeps on disk
what it takes to undo it; one that cannot be saved is an error inside the operation, so
that it undoes what it has begun. ``host_memory`` and ``gpu`` promise memory before it
is used (law 11), and ``gpu`` empties and fills the cards; ``checkpoint_files`` names
what stands in a checkpoint, and reads CRIU's images out of it.

Read next: ``operations``, then ``node/workflows``, which has the steps.
"""

"""Sets up what the agent needs before it can work: settings, store, a ready node.

Settings that contradict each other, a store that cannot be opened, or a missing key end
the start with a sentence. A first master key is made, but never beside checkpoints that
need another one. Without a working CRIU the agent starts all the same, says so, and
takes a CRIU that is installed later.

Read next: ``settings``, then ``docs/explanation/store.md``.
"""

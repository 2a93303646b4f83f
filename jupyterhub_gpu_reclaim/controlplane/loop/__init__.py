"""The control loop: observe, compare, do one action, look again.

``scheduler`` decides when, ``observer`` collects the state, ``reconciler`` (pure) picks
the action, and ``worker`` does it, one session at a time.
"""

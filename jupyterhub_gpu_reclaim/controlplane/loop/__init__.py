"""The control loop: observe, compare, do one action, look again.

``scheduler`` says when, ``observer`` what is so, ``reconciler`` (pure) what is to be
done, and ``worker`` does it, one session at a time.
"""

"""Capture, restore, release, nap, and recovery after a crash.

``capture`` and ``restore`` have every step in order, and the way back from each;
``filesystem`` does their part outside of CRIU. ``release`` ends a captured tree or
thaws it. ``nap`` moves GPU memory out of a session that goes on, and back. ``outcomes``
knows which checkpoints are in use.

One operation per session at a time; its record is on disk before its first effect, and
``recovery`` settles whatever a former agent left in the middle. A capture that fails
before the commit leaves the tree running (law 2); a restore that fails leaves the
checkpoint, and nothing under the init. A release ends a tree only if the store confirms
its checkpoint (law 1), which is restored in one place at a time (law 3).

Read next: ``capture``, then walks 1 and 3 of ``docs/explanation/walks.md``.
"""

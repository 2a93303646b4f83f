"""Capture, restore, release, nap, and recovery after a crash.

One operation per session at a time; its record is on disk before its first effect, and
``recovery`` settles whatever a former agent left in the middle. A capture that fails
before the commit leaves the tree running (law 2); a restore that fails leaves the
checkpoint, and nothing under the init. A release ends a tree only if the store confirms
its checkpoint (law 1), which is restored in one place at a time (law 3).

Read next: ``capture``, then walks 1 and 3 of ``docs/explanation/walks.md``.
"""

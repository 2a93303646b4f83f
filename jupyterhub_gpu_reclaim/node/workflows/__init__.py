"""Capture, restore, release, and recovery after a crash.

One operation per session at a time; its record is on disk before its first effect, and
``recovery`` settles whatever a former agent left in the middle.
"""

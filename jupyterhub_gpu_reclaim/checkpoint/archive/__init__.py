"""Archives a session's private file systems as a tar stream, and unpacks them.

Private are those that end with the session: its temporary file systems, and in a
container the upper layer of the root's overlay. ``rootfs`` finds them, ``writer``
streams them while the tree is stopped, ``reader`` unpacks them at the new place, and
``tarformat`` has what both add to plain tar.

Neither the stream nor the place is trusted: nothing leaves the given folder, no link is
followed, no device is made, and sizes are limited. Unpacking twice is harmless. What
cannot be read ends a capture, a damaged stream or a place that does not take it a
restore. Read next: ``writer``, ``reader``, then ``docs/explanation/pods.md``.
"""

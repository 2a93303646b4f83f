"""Files: opened again as the session itself could open them, never as root.

At a capture, ``open_files`` records what is open, ``deleted_files`` and ``other_names``
refuse what would have to be saved as root, and ``watched`` tells CRIU the paths of
watched folders. At a restore, ``saved_files`` reads from CRIU's images what to open and
for which task; ``reopen`` opens it with the task's own ``credentials`` below the
session's root, ``unix_names`` does the same for named sockets, and ``handover`` passes
the descriptors to CRIU, which then opens no path that a user could have changed.

Law 8: a restored session can open nothing that its user could not open at that moment;
``reopen`` explains the two exceptions. A file that is gone, closed to the user or
changed in a way that matters ends the restore with a reason of its own.

Read next: ``handover``, then ``docs/explanation/criu.md``. ``tree.inspection`` compares
the result once more.
"""

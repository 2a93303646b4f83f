"""Files: opened again as the session itself could open them, never as root.

``open_files`` records what is open, ``kept_files`` and ``put_back`` are about files
that have changed since. At a restore, ``saved_files`` reads from CRIU's images what to
open and for which task; ``reopen`` opens it with the task's own ``credentials`` below
the session's root. ``kinds`` hands the descriptors to CRIU.

Law 8: a restored session can open nothing that its user could not open at that moment;
``reopen`` explains the two exceptions. Read next: ``reopen``, then
``docs/explanation/criu.md``. ``tree.inspection`` compares the result once more.
"""

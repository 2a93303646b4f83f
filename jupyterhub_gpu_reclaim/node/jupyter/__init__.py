"""A session's Jupyter server: its login, and how it is woken after a restore.

The login goes into the checkpoint and is neither logged nor written elsewhere. Anything
that the user could have written, such as a kernel's connection file, is not trusted. No
restore depends on the wake-up: a server that cannot be held continues with the others.

Read next: ``wake_up``, then ``node/workflows/restore.py``.
"""

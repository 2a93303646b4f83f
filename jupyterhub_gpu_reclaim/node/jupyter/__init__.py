"""A session's Jupyter server: its login, and how it is woken after a restore.

``server`` reads address and login from the environment of the session's first program,
asks what the server has open, and finds out whether it speaks TLS. ``wake_up`` queues
requests before a restored tree continues, so that server and kernels see activity
before their cullers look at the clock. ``connection`` reads a kernel's ports.

The login goes into the checkpoint and is neither logged nor written elsewhere. Whatever
the user could have written, such as a kernel's connection file, is not trusted. No
restore depends on the wake-up: a server that cannot be held continues with the others.

Read next: ``wake_up``, then ``node/workflows/restore.py``.
"""

"""The service's life as a process of its Hub.

The Hub's process holds the listening socket (``held_socket``), and the service takes a
copy of it, if it has the rights: callers wait while the service is started again, and
no other program gets its address. ``lifeline`` ends the service with its Hub, or when
its event loop hangs. The service may start slowly, fail or be replaced without the Hub
ending (law 10): ``hub/patches.py`` starts it again. Read next: ``held_socket``, then
walk 5 of ``docs/explanation/walks.md``.
"""

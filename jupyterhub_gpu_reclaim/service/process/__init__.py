"""The service as a program: supervised, with a stand-in while it starts or fails.

The Hub's process holds the listening socket (``held_socket``), and ``supervisor`` takes
a copy of it, where it has the rights. It starts the service proper as its child and
reads its reports (``reporting``); while the child is not ready, ``standin`` answers.
``standby`` answers inside the child until the service may work. ``lifeline`` ends all
of it with the Hub, and locks the state folder.

The service may start slowly, fail or be replaced without the Hub ending (law 10), and
while the Hub holds the address no other program gets it. A child that ends or hangs is
started again, each time later; with wrong settings it is not started, and the page says
why.

Read next: ``supervisor``, then walk 5 of ``docs/explanation/walks.md``.
"""

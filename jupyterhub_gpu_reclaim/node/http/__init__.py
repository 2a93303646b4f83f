"""The agent's HTTP interface: listener, authentication and routes.

``listener`` opens the socket file or the TCP port, with token and TLS, and refuses
where others could read the traffic or know the token. ``routes`` reads a request, calls
the ``Node`` behind it, and writes the answer; operations are streams of events, one
JSON value a line. A stream that breaks changes nothing: the operation goes on, and the
next call of the same kind attaches to it. Errors are codes and sentences; a traceback
goes to the log alone.

Read next: ``routes``, then "The service asks the agent" in
``docs/explanation/architecture.md``.
"""

"""The vocabulary of the control plane: phases, rows, accounting, and its interfaces.

Data and pure functions. ``phases`` is the table of a session's life; ``interfaces``
says what the control plane asks of the Hub and of the agents.
"""

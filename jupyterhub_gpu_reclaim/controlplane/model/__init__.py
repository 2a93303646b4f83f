"""The vocabulary of the control plane: data and pure functions.

``phases`` is the table of a session's life, where law 1 is enforced: the phases in
which programs are ended can only be entered with a committed checkpoint. ``rows`` are
what the journal keeps, ``accounting`` counts GPU time and waiting, ``settings`` are the
limits. ``interfaces`` says what is asked of the Hub and of the agents.
"""

"""The long ways of a session: suspend and resume.

``suspend`` leads from a decision to a committed checkpoint and a released tree,
``resume`` from a placed init to a session that answers. ``taking`` writes into the row
what a session has been found to be. Each step is in the journal before it is taken (law
6), and nothing is ended before the commit (law 1). If an agent is lost on the way
(``Unreachable``), its operation may go on, and is attached to later.
"""

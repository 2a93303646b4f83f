"""The long ways of a session: suspend, resume, adoption, and the queue for a GPU.

Each step is in the journal before it is taken, so that a restarted service goes on from
where the last one was.
"""

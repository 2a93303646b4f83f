"""The long ways of a session: suspend, resume, adoption, and the GPU queue.

Each step is in the journal before it is taken, so that a restarted service continues
from the last one.
"""

"""How long checkpoints are kept, which is the newest, and how they come back.

A checkpoint that a session may still need is not deleted. An order to delete is
durable, repeated until it is done, and bound to the account that the checkpoint belongs
to.
"""

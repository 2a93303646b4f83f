"""How long checkpoints are kept, which is the newest, and how they come back.

Nothing is deleted that a session may still need: an order to delete is durable,
repeated until it is done, and bound to the account that the checkpoint belongs to.
"""

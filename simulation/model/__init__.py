"""A session as a small model, and a checker that tries all orders of its steps."""

"""What an operation on a session stands on: one at a time, with a durable record."""

"""What the agent needs before it can work: settings, the store, a ready node."""

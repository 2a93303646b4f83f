"""What the agent is given before it can work: settings, the store, CRIU, limits."""

"""The sessions of this node: found on each call, never registered; state and use."""

"""The sessions of this node: found anew at each look, never registered."""

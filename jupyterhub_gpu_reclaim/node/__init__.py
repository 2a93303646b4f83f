"""The agent: captures, restores and releases sessions on one node, on orders."""

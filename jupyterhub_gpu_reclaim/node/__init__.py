"""The node program: captures, restores and releases sessions, on orders."""

"""Sockets: what can be saved, what is cut, and which ports a session needs again."""

"""Captures and restores process trees: CRIU, GPU memory, sockets and open files."""

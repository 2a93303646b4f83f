"""The agent's HTTP interface: where it listens, who may call, and the calls."""

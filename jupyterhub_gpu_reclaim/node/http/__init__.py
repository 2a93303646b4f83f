"""The agent's HTTP interface: listener, authentication and routes."""

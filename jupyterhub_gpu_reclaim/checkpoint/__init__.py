"""Stage 4, freeze and thaw: CRIU in the namespaces of a session."""

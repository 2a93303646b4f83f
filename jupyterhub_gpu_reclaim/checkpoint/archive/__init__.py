"""Archives a session's private file systems as a tar stream, and unpacks them."""

"""A session's private file systems as a tar stream, and back below one folder."""

"""Worker processes: forked from a ready process, one channel each, ended with it."""

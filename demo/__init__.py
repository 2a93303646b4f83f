"""The whole product on this machine, to look at (``make demo``) or to check."""

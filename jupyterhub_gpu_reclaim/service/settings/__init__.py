"""Every setting of the service, checked before anything acts on it."""

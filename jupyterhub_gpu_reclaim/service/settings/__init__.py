"""Every setting of the service, judged before anything acts on it."""

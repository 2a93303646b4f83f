"""Pure decisions whether to suspend a session, each with its reason."""

"""Notices to a webhook and by e-mail, made of the journal's audit log."""

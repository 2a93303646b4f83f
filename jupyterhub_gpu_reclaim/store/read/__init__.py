"""A committed checkpoint, read: every byte authenticated before it is used."""

"""The event log: who did what to whose session, one line of JSON each, for machines."""

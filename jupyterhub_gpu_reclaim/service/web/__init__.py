"""The pages: each person's own sessions, the managers' table, and their forms."""

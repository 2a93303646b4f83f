"""The phases of a session on paper, and a checker that tries all of their orders."""

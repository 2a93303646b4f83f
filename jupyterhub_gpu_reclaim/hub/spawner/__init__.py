"""The spawner mixin: starts, stops, the pointer in the Hub's database, and logins."""

"""Templates and static files, for the Hub's pages and for the service's."""

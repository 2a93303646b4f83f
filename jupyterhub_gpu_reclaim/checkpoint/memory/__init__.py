"""Memory that does not go through CRIU: found in its images, filled afterwards."""

"""The restored Jupyter server: woken before its cullers look at the clock."""

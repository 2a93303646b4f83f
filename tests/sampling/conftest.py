"""Real sessions with a Jupyter server for the samples' tests."""

from tests.node.conftest import folder, jupyter, places

__all__ = ["folder", "jupyter", "places"]

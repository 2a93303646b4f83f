"""Real sessions for the samples' tests."""

from tests.node.conftest import folder, places

__all__ = ["folder", "places"]

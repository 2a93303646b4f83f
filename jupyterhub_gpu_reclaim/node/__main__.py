"""``jupyterhub-gpu-reclaim-agent``: runs the agent, or says in a sentence why not."""

from __future__ import annotations

import importlib
import sys

OURS = "jupyterhub_gpu_reclaim"


def main() -> None:
    try:
        app = importlib.import_module(f"{OURS}.node.app")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(OURS):
            raise
        sys.exit(
            f"The agent needs the Python package of {error.name}."
            ' Run: pip install "jupyterhub-gpu-reclaim[agent]"'
        )
    app.main()


if __name__ == "__main__":
    main()

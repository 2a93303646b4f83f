"""The server that JupyterHub's own tests start, without the Hub's database.

They start a hundred, and each would import for a second what it never uses.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.light_server import LEFT_OUT, LeftOut

COMMAND = [sys.executable, __file__]


def main() -> None:
    sys.modules.update((name, LeftOut(name)) for name in LEFT_OUT)
    from jupyterhub.tests.mocksu import main as serve

    serve()


if __name__ == "__main__":
    main()

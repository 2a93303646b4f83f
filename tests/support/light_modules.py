"""Modules that take the place of slow ones that no test needs.

Who starts a program without the environment of the tests has to name their folder in
``PYTHONPATH``: a Jupyter server starts in a quarter of the processor's time with it.
"""

from pathlib import Path

FOLDER = Path(__file__).with_name("light")

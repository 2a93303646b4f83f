"""Stands before a package that takes every Jupyter server 1.6 s of processor to import.

It compiles a grammar of international web addresses for jsonschema, which does without
where it cannot be imported. ``tests/conftest.py`` puts this folder into the search path
of all programs that tests start: Hubs and sessions, a hundred of them.
"""

raise ImportError("left out in tests")

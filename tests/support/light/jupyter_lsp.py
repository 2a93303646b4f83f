"""Stands before a server extension that looks for programs which tests do not need.

It starts Node twice and git once in every Jupyter server, 0.4 s of processor, to find
language servers. A Jupyter server does without an extension that cannot be imported.
"""

raise ImportError("left out in tests")

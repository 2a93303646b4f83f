"""The process tree: frozen, dumped, restored, compared, continued.

A tree that CRIU has left is stopped until ``inspection`` has compared each descriptor
and mapping with what was opened for it; a failed dump ends with ``thaw``.
"""

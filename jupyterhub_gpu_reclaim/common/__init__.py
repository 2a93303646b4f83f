"""What every part of the product shares: data, errors, reasons, text, time, HTTP.

Nothing here knows JupyterHub, a GPU, CRIU or the store, and nothing here imports
another room. ``models`` holds the values of every API, ``reasons`` every sentence that
a person reads, ``errors`` the one error tree.
"""

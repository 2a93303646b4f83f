"""JupyterLab and Notebook extension, and the server extension beside it.

``server_extension`` runs in the session's own Jupyter server: it gives an open tab its
token, and installs the other modules. ``labextension`` is the JavaScript of the tab;
``server_config`` switches the server extension on.

The token is good for this session alone, and only for those who may use the server. A
page that does not know yet which kernels run cannot replace a notebook's kernel, and a
kernel lives as long as one of its sessions (law 10). Restarting or changing a kernel on
purpose is not hindered. Read next: ``kernel_keeper``, then ``docs/explanation/tab.md``.
"""

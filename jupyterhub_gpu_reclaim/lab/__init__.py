"""What runs in a user's browser tab: the extension of JupyterLab and Notebook."""

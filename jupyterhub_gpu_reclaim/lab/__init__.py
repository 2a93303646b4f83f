"""Server side of the JupyterLab and Notebook extension."""

"""The control plane's calls: for people, for programs and for the spawner.

``controller`` wires the parts. Each call is checked and journalled before it answers.
"""

"""What may be asked of the control plane: by people, by programs, by the spawner.

``controller`` puts the parts together. Each call is checked and journalled before it
answers.
"""

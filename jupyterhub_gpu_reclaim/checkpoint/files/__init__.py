"""Files: opened again as the session itself could open them, never as root.

``handover`` opens what CRIU would open by path, each with the task's own credentials
(``credentials``) below its own root, and hands the descriptors to CRIU.
"""

"""The command line of a session's init, behind its program."""

from typing import Any

from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments, written


def init_words(mode: str, *command: str, **facts: Any) -> list[str]:
    """``hold``: it waits for a restore, and has no command."""
    names = {"incarnation": "test", "user": "ann", "holding": mode == "hold"}
    word = written(InitArguments(**{**names, **facts}))
    return [word, "--", *command] if command else [word]

"""What Linux gives a program, kind by kind, and what becomes of it in a suspend.

Each module has a table for one part. The tests try every row with real CRIU;
``docs/generate.py`` makes ``docs/reference/what-comes-back.md`` of them.
"""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["kept", "refused", "lost"]


@dataclass(frozen=True)
class Kind:
    """One thing that a program can have.

    Attributes:
        name: as users know it, e.g. ``O_APPEND``.
        outcome: kept; refused, and the session runs on; or lost, and harmless.
        note: what a user should know; empty: nothing.
        program: Python that sets it up, prints what it sees, and does so again after a
            line on its input; empty: it cannot be made on the machines of the tests.
        code: of a refusal, where it matters which; empty: any that names the program.
    """

    name: str
    outcome: Outcome
    note: str = ""
    program: str = ""
    code: str = ""

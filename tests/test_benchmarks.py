"""What the benchmarks take from the project is there: they are run by hand, rarely."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(ROOT.glob("benchmarks/*.py"))
OURS = ("jupyterhub_gpu_reclaim", "simulation", "demo", "tests")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_what_a_benchmark_imports_of_the_project_is_there(program):
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")

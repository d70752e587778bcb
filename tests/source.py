"""The project's own source, as the tests that walk it see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS = ("engine", "workers", "coordinator")


def python_files(*folders: str) -> list[Path]:
    """Every Python file below the folders, in a stable order."""
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def relative(path: Path) -> str:
    """The path as a reader of the repository names it."""
    return path.relative_to(REPOSITORY).as_posix()


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Each import of a module's source as (line, dotted name), inside functions and `TYPE_CHECKING` blocks too.

    `from a.b import c` gives `a.b.c`, because `c` may be a module; who asks compares by prefix.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def belongs_to(name: str, package: str) -> bool:
    """Whether a dotted name is the package or something inside it."""
    return name == package or name.startswith(f"{package}.")


def _is_dynamic_import(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in {"import_module", "__import__"}

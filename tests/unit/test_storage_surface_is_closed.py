"""Only the storage module touches Lance, so that every commit is given a namespace client of ours.

Two rules: nobody else imports `lance`, and nobody else calls a method that makes a Lance version or deletes one, for a
handle can be passed to a module that imports nothing.
"""

from __future__ import annotations

import ast

import pytest

from tests.source import LAYERS, belongs_to, imported_modules, python_files, relative

# Manifest and audit are no tables of the graph: their versions are meant to be visible at once, as a compare-and-swap.
# An empty table is made in a scratch folder, where nobody looks, and so is the next version of a mirrored one.
STORAGE_MODULES = frozenset(
    {
        "engine/history/audit.py",
        "engine/history/cas_table.py",
        "engine/history/lineage_upkeep.py",
        "engine/history/manifest.py",
        "engine/history/manifest_reader.py",
        "engine/history/time_search.py",
        "engine/tables/empty_table.py",
        "engine/tables/fragment_text.py",
        "engine/tables/mirror.py",
        "engine/tables/storage.py",
        "engine/tables/table.py",
        "engine/tables/versions.py",
    }
)
LANCE_PACKAGES = ("lance", "lancedb", "lance_namespace", "lance_namespace_urllib3_client")
# Names that only Lance has: `commit`, `delete`, `update` and `insert` are words of our own too, and need the import.
COMMITTING_CALLS = frozenset(
    {
        "add_columns",
        "alter_columns",
        "cleanup_old_versions",
        "commit_batch",
        "commit_existing_index_segments",
        "compact_files",
        "create_index",
        "create_scalar_index",
        "create_table_version",
        "drop_columns",
        "drop_index",
        "merge_insert",
        "optimize_indices",
        "replace_field_metadata",
        "replace_schema_metadata",
        "update_config",
        "write_dataset",
        "write_fragments",
    }
)


def breaches(source: str) -> list[str]:
    """Each place where a module reaches for Lance itself, as `line: what`."""
    imports = [
        f"{line}: import {name}"
        for line, name in imported_modules(source)
        if any(belongs_to(name, package) for package in LANCE_PACKAGES)
    ]
    calls = [
        f"{node.lineno}: .{node.attr}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in COMMITTING_CALLS
    ]
    return imports + calls


def test_nobody_but_the_storage_module_reaches_for_lance() -> None:
    outside = [path for path in python_files(*LAYERS) if relative(path) not in STORAGE_MODULES]
    found = {relative(path): breach for path in outside if (breach := breaches(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import lance",
        "import lance as storage",
        "from lance.fragment import write_fragments",
        "def late():\n    from lance import LanceDataset",
        "import importlib\nimportlib.import_module('lance')",
        "import lancedb",
        "from lance_namespace import LanceNamespace",
        "def hidden(handle):\n    handle.cleanup_old_versions()",
        "def hidden(handle, rows):\n    handle.merge_insert('id').when_not_matched_insert_all().execute(rows)",
        "def hidden(handle):\n    handle.optimize.compact_files()",
        "def hidden(handle):\n    index = handle.create_scalar_index\n    index('id', 'BTREE')",
    ],
)
def test_the_walker_finds_a_planted_breach(planted: str) -> None:
    assert breaches(planted) != []


def test_the_walker_lets_a_caller_of_the_storage_module_pass() -> None:
    proper = "from omniray.engine import tables\n\ndef write(table, rows):\n    tables.stage_append(table, rows)"
    assert breaches(proper) == []

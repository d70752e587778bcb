"""What the manifests of a table's versions are called, and what tells whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omniray.engine.line.commit_object import SEQ_MAX, Pin

_SUFFIX = ".manifest"


def final_name(staging: str) -> str:
    """`…/<20 digits>.manifest-<suffix>` without its suffix: where every Lance reader looks."""
    return staging.rsplit(".manifest-", 1)[0] + ".manifest"


def final_path(table_path: str, version: int) -> str:
    """The final name of a version that is known by its number alone."""
    return f"{table_path}/_versions/{SEQ_MAX - version:020}.manifest"


def history_path(table_path: str, version: int) -> str:
    """Where the manifest of an old version lies."""
    return f"{table_path}/_history/{SEQ_MAX - version:020}.manifest"


def transaction_mark(pin: Pin) -> bytes:
    """The bytes in a manifest that tell whose it is: the name of its transaction file.

    True of versions that omniray staged, each on the one before it; a foreign one may have been rebased.
    """
    return f"{pin.version - 1}-{pin.transaction}.txn".encode()


def final_versions(names: Iterable[str]) -> Iterator[int]:
    """The versions whose final names are among those of a folder."""
    for name in names:
        digits = name.removesuffix(_SUFFIX)
        if name.endswith(_SUFFIX) and len(digits) == 20 and digits.isdigit():
            yield SEQ_MAX - int(digits)

"""The names of a table's manifests, and the mark that tells to which pin a manifest belongs.

    <table>/_versions/<20 digits>.manifest                  a version of main under its final name: plain Lance reads it
    <table>/_history/<20 digits>.manifest                   an older one, moved out of the way
    <table>/_staged/<txn>/<20 digits>.manifest              a version of main that has no final name yet
    <table>/_branches/<line>/<txn>/<20 digits>.manifest     a version of another branch: its only name

The digits are the version's number, inverted. A path that ends in `.manifest` and keeps them is read by Lance as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omniray.engine.line.commit_object import SEQ_MAX, Pin

VERSIONS, HISTORY, STAGED, BRANCHES = "_versions", "_history", "_staged", "_branches"
_SUFFIX = ".manifest"
_NO_TRANSACTION = "-"  # of a version that a repair adopted: nothing is ever staged there


def manifest_name(version: int) -> str:
    return f"{SEQ_MAX - version:020}{_SUFFIX}"


def version_of(manifest_path: str) -> int:
    """The number of the version whose manifest has this path."""
    return SEQ_MAX - int(manifest_path.rpartition("/")[2].removesuffix(_SUFFIX))


def branch_and_table_of(own_path: str) -> tuple[str, str]:
    """The line and the table of a version of a branch, by the path of its manifest."""
    table, _, line, _, _ = own_path.rsplit("/", 4)
    return line, table


def final_path(table_path: str, version: int) -> str:
    """The final name, where every Lance reader looks."""
    return f"{table_path}/{VERSIONS}/{manifest_name(version)}"


def history_path(table_path: str, version: int) -> str:
    """Where the manifest of an old version lies."""
    return f"{table_path}/{HISTORY}/{manifest_name(version)}"


def own_folder(table_path: str, line: str, main_line: str, transaction: str) -> str:
    """The folder of one version alone, whose name follows from its transaction: no other attempt writes there."""
    home = STAGED if line == main_line else f"{BRANCHES}/{line}"
    return f"{table_path}/{home}/{transaction or _NO_TRANSACTION}"


def own_path(pin: Pin, main_line: str) -> str:
    """Where the manifest of a pinned version was staged: for good on a branch, until Phase D deletes it on main."""
    return f"{own_folder(pin.path, pin.line, main_line, pin.transaction)}/{manifest_name(pin.version)}"


def possible_paths(pin: Pin, main_line: str, *, is_final: bool) -> tuple[str, ...]:
    """Where the manifest of a pinned version may be, in the order in which to look.

    Phase D may run meanwhile: a manifest gets its final name before its own name is deleted, and is copied to the
    history before the final name is deleted. So a reader that looks in this order always finds it.
    """
    own = own_path(pin, main_line)
    if pin.line != main_line:
        return (own,)
    final = (final_path(pin.path, pin.version), history_path(pin.path, pin.version))
    return (*final, own, *final) if is_final else (own, *final)


def transaction_mark(pin: Pin) -> bytes:
    """The bytes that identify the manifest of a pin: the end of its transaction file's name.

    Before the uuid stands the version that the transaction read; a foreign writer may have read any.
    """
    return f"-{pin.transaction}.txn".encode()


def is_of(pin: Pin, manifest: bytes) -> bool:
    """Whether a manifest is that of a pinned version, and not of another one with the same number.

    A pin without a transaction was adopted by a repair from a foreign writer that left none: any manifest there is it.
    """
    return not pin.transaction or transaction_mark(pin) in manifest


def final_versions(names: Iterable[str]) -> Iterator[int]:
    """The versions whose final names are among a folder's names."""
    for name in names:
        digits = name.removesuffix(_SUFFIX)
        if name.endswith(_SUFFIX) and len(digits) == 20 and digits.isdigit():
            yield SEQ_MAX - int(digits)

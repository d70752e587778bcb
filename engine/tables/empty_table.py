"""Version 1 of a Lance table as bytes, so that a table's creator decides when, and whether, it becomes visible.

Lance's own create puts the first version under its final name, and does not say which of two concurrent creators was
first. So the table is made in a scratch folder, and the caller puts its two files by the rules of the line. They hold
no path and no data, so they are valid in any place.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa

from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import SEQ_MAX

FIRST_MANIFEST = f"{SEQ_MAX - 1:020}.manifest"


@dataclass(frozen=True, slots=True)
class EmptyTable:
    """The two files of a table's version 1: the transaction goes to `_transactions/`, the manifest to `_versions/`."""

    transaction_uuid: str
    transaction_file_name: str
    transaction_bytes: bytes
    manifest_bytes: bytes


def empty_table_files(schema: pa.Schema, storage_version: str | None) -> EmptyTable:
    """Version 1 of a table without rows; no two calls give the same transaction."""
    try:
        with tempfile.TemporaryDirectory(prefix="omniray-") as scratch:
            dataset = lance.write_dataset(schema.empty_table(), scratch, data_storage_version=storage_version)
            uuid = dataset.read_transaction(1).uuid
            name = f"0-{uuid}.txn"
            return EmptyTable(
                transaction_uuid=uuid,
                transaction_file_name=name,
                transaction_bytes=Path(scratch, "_transactions", name).read_bytes(),
                manifest_bytes=Path(scratch, "_versions", FIRST_MANIFEST).read_bytes(),
            )
    except OSError as error:
        raise StorageError(
            f"can't make an empty table in {tempfile.gettempdir()}: {str(error).splitlines()[0]}; "
            "check that it is writable, or set TMPDIR to a folder that is"
        ) from error

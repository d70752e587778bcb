"""The bytes of a manifest file: a handle is made of them without a request, and what is none is refused."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.tables.manifest_file import serialised
from tests.lance_tables import final_file, ids, new_table, rows


def made_of(dataset: lance.LanceDataset) -> bytes:
    """The newest manifest's file."""
    return final_file(dataset, dataset.version).read_bytes()


@pytest.mark.parametrize("has_index", [False, True], ids=["the manifest alone", "an index section before it"])
def test_what_is_cut_out_is_what_lance_itself_hands_out_and_reads(tmp_path: Path, has_index: bool) -> None:
    dataset = new_table(tmp_path, rows("a", "b"))
    if has_index:
        dataset.create_scalar_index("id", "BTREE")
        dataset = lance.dataset(dataset.uri)
    found = serialised(made_of(dataset), where="here")
    assert found == dataset._ds.serialized_manifest()
    again = lance.LanceDataset(dataset.uri, version=dataset.version, serialized_manifest=found)
    assert ids(again) == ["a", "b"]
    assert again.count_rows("id = 'a'") == 1


@pytest.mark.parametrize("broken", ["nothing", "short", "cut at the end", "cut at the start", "another magic", "zeros"])
def test_what_is_no_manifest_is_refused_and_named(tmp_path: Path, broken: str) -> None:
    whole = made_of(new_table(tmp_path, rows("a")))
    data = {
        "nothing": b"",
        "short": b"LANC",
        "cut at the end": whole[:-3],
        "cut at the start": whole[len(whole) // 2 :],
        "another magic": whole[:-4] + b"PAR1",
        "zeros": bytes(len(whole)),
    }[broken]
    with pytest.raises(InvariantViolation, match=r"here is not a Lance manifest; restore it from a backup"):
        serialised(data, where="here")

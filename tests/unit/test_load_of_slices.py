"""Loads of Arrow data that was cut out of something larger: what was cut off must not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omniray


@pytest.mark.parametrize(
    ("type", "arrow", "item"),
    [("[String]", pa.string(), "abc"), ("[Blob]", pa.large_binary(), b"abc"), ("[I32]", pa.int32(), 7)],
)
@pytest.mark.parametrize("last", [[], None], ids=["empty", "null"])
def test_a_slice_in_which_all_lists_are_empty_is_loaded(
    tmp_path: Path, type: str, arrow: pa.DataType, item: Any, last: list[Any] | None
) -> None:
    whole = pa.table({"list": pa.array([[item], last], pa.list_(arrow))})
    with omniray.init(str(tmp_path / "graph"), schema=f"node Item {{ list: {type}? }}") as graph:
        graph.load(whole.slice(1), type="Item")
        assert graph.snapshot().table("Item")["list"].to_pylist() == [last]
        graph.load(whole, type="Item", mode="overwrite")
        assert graph.snapshot().table("Item")["list"].to_pylist() == [[item], last]

"""JSON to load that is nested without end, or takes far more memory than it is long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omniray.engine.rows import json_bounds
from omniray.engine.rows.json_bounds import DECODED_BYTES_MAX, too_many_values
from omniray.engine.rows.rejects import RejectFile
from omniray.engine.rows.row_validation import conform_block
from omniray.engine.rows.source_files import LINE_BYTES_MAX
from omniray.engine.rows.sources import open_source
from omniray.engine.schema.parser import parse_schema

SCHEMA = parse_schema("node Doc { text: String? tags: [String]? marks: [F64]? n: I64? }")
DEPTHS = (10, 490, 900, 960, 990, 1000, 1100, 5000, 1_000_000)
FILES = {
    "record.jsonl": '{"type":"Doc","data":{"text":%s}}\n',
    "list.jsonl": '{"type":"Doc","data":{"tags":[%s]}}\n',
    "plain.jsonl": '{"text":%s}\n',
    "rows.csv": 'tags,n\n"%s",1\n',
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("name", FILES)
def test_a_value_nested_without_end_is_refused_with_its_record(
    name: str, opening: str, closing: str, depth: int, tmp_path: Path
) -> None:
    value = opening * depth + "1" + closing * depth
    path = tmp_path / name
    path.write_text(FILES[name] % (value.replace('"', '""') if name.endswith("csv") else value))
    rejects = RejectFile(tmp_path / "rejects.jsonl")
    given = {"type_name": "Doc"} if name in ("plain.jsonl", "rows.csv") else {}
    for block in open_source(path, SCHEMA, **given):
        rejects.write(conform_block(block)[1])
    rejects.finish()
    (line,) = (tmp_path / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == (2 if name.endswith("csv") else 1)


@pytest.mark.parametrize("unit", ["[],", "{},", '{"":0},', "0,", '"",'])
@pytest.mark.parametrize("name", ["record.jsonl", "rows.csv"])
def test_a_record_that_takes_far_more_memory_than_it_is_long_is_refused(unit: str, name: str, tmp_path: Path) -> None:
    values = f"[{unit * ((LINE_BYTES_MAX - 100) // len(unit))}0]"
    if name == "rows.csv":
        text = 'tags,n\n"{}",1\n'.format(values[: LINE_BYTES_MAX // 2].replace('"', '""'))
    else:
        text = f'{{"type":"Doc","data":{{"marks":{values}}}}}\n'
    path = tmp_path / name
    path.write_text(text)
    given = {"type_name": "Doc"} if name == "rows.csv" else {}
    (refused,) = [one for block in open_source(path, SCHEMA, **given) for one in conform_block(block)[1]]
    expected = "more than 256 MiB in memory" if name == "record.jsonl" else "invalid value for Doc.tags: '["
    assert expected in refused.reason


def test_a_long_record_is_read_if_it_takes_little_memory(tmp_path: Path) -> None:
    """Its text is full of commas and brackets, and says nothing of its values."""
    text = json.dumps('[{,"' * ((LINE_BYTES_MAX - 100) // 5))
    marks = "[" + "0.5,0.25," * 200_000 + "1]"
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"type":"Doc","data":{{"text":{text}}}}}\n{{"type":"Doc","data":{{"marks":{marks}}}}}\n')
    found = [conform_block(block) for block in open_source(path, SCHEMA)]
    assert [one for _, rejections in found for one in rejections] == []
    assert sum(len(batch.rows) for batches, _ in found for batch in batches) == 2


def test_short_texts_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest of them stays far below the limit whatever it holds."""
    monkeypatch.setattr(json_bounds, "_decoded_bytes", lambda text: pytest.fail("looked at"))
    assert too_many_values(b"[" * (1 << 20)) is None
    assert (1 << 20) * json_bounds._CONTAINER_BYTES <= DECODED_BYTES_MAX

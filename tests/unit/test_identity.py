from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from omniray.engine.base.ulids import is_ulid, new_ulid
from omniray.engine.rows.records import ConformedBatch
from omniray.engine.rows.row_ids import derive_ids, fill_ids, mint_ulids
from omniray.engine.schema.types import EdgeType, Key, NodeType, Property, Scalar, ScalarType


def node_with_key(**types: str) -> NodeType:
    properties = tuple(Property(name, ScalarType(Scalar(of))) for name, of in types.items())
    return NodeType("Thing", properties, properties, constraints=(Key(tuple(types)),))


def ids_of(values: list, of: str) -> list:
    type = node_with_key(k=of)
    return derive_ids(type, {"k": pa.array(values, type.arrow.field("k").type)}).to_pylist()


@pytest.mark.parametrize(
    ("of", "values", "ids"),
    [
        ("String", ["Ann", "", 'a"b'], ["Ann", "", 'a"b']),
        ("I32", [0, -7], ["0", "-7"]),
        ("I64", [-(2**63)], ["-9223372036854775808"]),
        ("U64", [2**64 - 1], ["18446744073709551615"]),
        ("Bool", [True, False], ["true", "false"]),
        ("Date", [date(1970, 1, 2), date(1969, 12, 31)], ["1", "-1"]),
        ("DateTime", [datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)], ["1000005"]),
        # These texts are stored: another spelling of the same float would be another node.
        (
            "F64",
            [0.0, -0.0, 1.0, 0.1, -2.5, 1e16, 1e300, 5e-324],
            ["0", "0", "1", "0.1", "-2.5", "1e+16", "1e+300", "5e-324"],
        ),
        ("F32", [0.1, 16777216.0], ["0.1", "16777216"]),
    ],
)
def test_a_key_of_one_property_is_its_canonical_text(of: str, values: list, ids: list[str]) -> None:
    assert ids_of(values, of) == ids


@settings(max_examples=60)
@given(st.lists(st.tuples(st.text(), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=5))
def test_a_composite_key_is_the_json_array_of_its_texts(rows: list[tuple[str, int]]) -> None:
    type = node_with_key(a="String", b="I32")
    columns = {"a": pa.array([a for a, _ in rows], pa.string()), "b": pa.array([b for _, b in rows], pa.int32())}
    expected = [json.dumps([a, str(b)], separators=(",", ":"), ensure_ascii=False) for a, b in rows]
    assert derive_ids(type, columns).to_pylist() == expected


def test_every_control_character_is_escaped_as_json_does() -> None:
    text = "".join(map(chr, range(0x21))) + '\x7f\u2028\\"é'
    type = node_with_key(a="String", b="String")
    derived = derive_ids(type, pa.table({"a": [text], "b": ["x"]})).to_pylist()
    assert derived == [json.dumps([text, "x"], separators=(",", ":"), ensure_ascii=False)]


def test_a_null_in_the_key_leaves_the_id_null() -> None:
    type = node_with_key(a="String", b="String")
    assert derive_ids(type, pa.table({"a": ["x", None], "b": ["y", "z"]})).to_pylist() == ['["x","y"]', None]


def test_the_order_of_the_key_is_the_order_in_the_id() -> None:
    properties = tuple(Property(name, ScalarType(Scalar.STRING)) for name in ("a", "b"))
    type = NodeType("Thing", properties, properties, constraints=(Key(("b", "a")),))
    assert derive_ids(type, pa.table({"a": ["1"], "b": ["2"]})).to_pylist() == ['["2","1"]']


@settings(max_examples=50)
@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10), st.integers(1, 40))
def test_minted_ulids_are_valid_unique_rising_and_of_their_time(time_ms: int, random: bytes, count: int) -> None:
    texts = mint_ulids(count, timestamp_ms=time_ms, randomness=lambda n: random[:n]).to_pylist()
    parsed = [ULID.from_str(text) for text in texts]
    assert all(is_ulid(text) for text in texts)
    assert all(ulid.milliseconds == time_ms for ulid in parsed)
    start = int.from_bytes(random, "big") >> 1
    assert [int.from_bytes(ulid.bytes[6:], "big") for ulid in parsed] == list(range(start, start + count))
    assert sorted(set(texts)) == texts


def test_counting_up_carries_over_the_middle_of_the_random_part() -> None:
    random = ((1 << 40) - 1 << 1).to_bytes(10, "big")
    first, second = mint_ulids(2, timestamp_ms=0, randomness=lambda n: random).to_pylist()
    assert int(ULID.from_str(second)) - int(ULID.from_str(first)) == 1


def test_two_calls_in_the_same_millisecond_do_not_meet() -> None:
    one, other = (set(mint_ulids(1000, timestamp_ms=7).to_pylist()) for _ in range(2))
    assert not one & other


def test_no_ulids_are_no_ulids_and_an_impossible_time_is_refused() -> None:
    assert mint_ulids(0, timestamp_ms=1).to_pylist() == []
    with pytest.raises(ValueError, match="48 bits"):
        mint_ulids(1, timestamp_ms=1 << 48)
    with pytest.raises(ValueError, match="in parts"):
        mint_ulids(1 << 27, timestamp_ms=1)


def test_a_ulid_is_known_by_its_spelling() -> None:
    assert is_ulid(new_ulid())
    for text in ("", "x" * 26, new_ulid().lower(), new_ulid()[:-1], "8" + "0" * 25, "0" * 25 + "I", new_ulid() + "\n"):
        assert not is_ulid(text)


def test_only_missing_ids_are_filled() -> None:
    edge = EdgeType("Knows", "Person", "Person")
    rows = pa.RecordBatch.from_pydict(
        {"id": ["mine", None, None], "src": ["a"] * 3, "dst": ["b"] * 3}, schema=edge.arrow
    )
    batch = ConformedBatch(edge, rows, pa.array([1, 2, 3]), "")
    filled = fill_ids(batch, clock=lambda: 1.5, randomness=lambda n: bytes(n))
    mine, first, second = filled.rows["id"].to_pylist()
    assert mine == "mine"
    assert [ULID.from_str(text).milliseconds for text in (first, second)] == [1500, 1500]
    assert first != second
    assert filled.rows.schema == edge.arrow
    assert fill_ids(filled) is filled

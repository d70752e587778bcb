"""Identities of types and properties: a rename keeps them, a change mints new ones, and their file is read strictly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.schema.identities import BYTES_MAX, Identities, TypeIdentity, after, decode, encode, initial
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.plan import plan_change
from omniray.engine.schema.types import Schema
from tests.schema_changes import changed_schemas

BEFORE = parse_schema("node Person { name: String @key  age: I32? } edge Knows: Person -> Person { since: Date? }")
TABLES = {"node:Person": "T1", "edge:Knows": "T2"}
FIRST = initial(BEFORE, TABLES)


def changed(text: str, commit_id: str = "C1") -> Identities:
    return after(plan_change(BEFORE, parse_schema(text)), FIRST, commit_id)


def test_the_first_identities_follow_from_the_ids_of_the_tables() -> None:
    assert (
        Identities(
            {
                "Person": TypeIdentity("T1", {"name": "T1.name", "age": "T1.age"}),
                "Knows": TypeIdentity("T2", {"since": "T2.since"}),
            }
        )
        == FIRST
    )


def test_a_rename_keeps_the_identity_and_what_is_added_gets_one_of_the_commit() -> None:
    assert changed(
        """
        node Human @rename_from("Person") { name: String @key  email: String?  years: I64? @rename_from("age") }
        node City { name: String @key }
        edge Knows: Human -> Human { since: Date? }
        """
    ) == Identities(
        {
            "Human": TypeIdentity("T1", {"name": "T1.name", "email": "C1-1", "years": "T1.age"}),
            "City": TypeIdentity("C1-2", {"name": "C1-3"}),
            "Knows": TypeIdentity("T2", {"since": "T2.since"}),
        }
    )


def test_a_name_that_is_dropped_and_added_again_is_another_one() -> None:
    without = parse_schema("node Person { name: String @key }")
    dropped = after(plan_change(BEFORE, without), FIRST, "C1")
    assert dropped == Identities({"Person": TypeIdentity("T1", {"name": "T1.name"})})
    again = after(plan_change(without, BEFORE), dropped, "C2")
    assert again.types["Person"].properties["age"] == "C2-1"
    assert again.types["Knows"] == TypeIdentity("C2-2", {"since": "C2-3"})


def test_a_name_that_is_taken_over_in_one_change_is_another_one() -> None:
    taken = changed(
        """
        node Person { name: String @key  old_age: I32? @rename_from("age")  age: String? }
        edge Knew: Person -> Person @rename_from("Knows") { since: Date? }
        edge Knows: Person -> Person
        """
    )
    assert taken.types["Person"].properties == {"name": "T1.name", "old_age": "T1.age", "age": "C1-1"}
    assert (taken.types["Knew"].id, taken.types["Knows"].id) == ("T2", "C1-2")


def test_the_file_is_the_same_whoever_writes_it_and_reads_back() -> None:
    data = encode(FIRST)
    turned = Identities(dict(reversed(FIRST.types.items())))
    assert encode(turned) == data
    assert decode(data, BEFORE, where="x") == FIRST
    assert json.loads(data)["types"]["Knows"] == {"id": "T2", "properties": {"since": "T2.since"}}


DAMAGED = {
    "no JSON": b"{",
    "another form": b'{"types": []}',
    "an unknown field": b'{"types": {}, "more": 1}',
    "an unknown field of a type": encode(FIRST).replace(b'"id":"T2"', b'"id":"T2","x":1'),
    "an identity of other characters": encode(FIRST).replace(b"T2.since", b"../since"),
    "an empty identity": encode(FIRST).replace(b'"T2.since"', b'""'),
    "a long identity": encode(FIRST).replace(b"T2.since", b"x" * 301),
    "an identity twice": encode(FIRST).replace(b"T2.since", b"T1.name"),
    "a property too few": encode(FIRST).replace(b'"since":"T2.since"', b""),
    "a type too few": encode(Identities({"Person": FIRST.types["Person"]})),
    "another type": encode(FIRST).replace(b'"Knows"', b'"Knew"'),
    "too many bytes": encode(FIRST) + b" " * BYTES_MAX,
    "deep nesting": b'{"types": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_file_that_does_not_hold_the_identities_of_its_schema_is_refused(data: bytes) -> None:
    with pytest.raises(InvariantViolation, match=r"__schema/x\.json does not hold the identities") as refused:
        decode(data, BEFORE, where="__schema/x.json")
    assert refused.value.facts == {"path": "__schema/x.json"}


@given(changed_schemas())
def test_after_any_change_each_type_and_property_has_one_identity_of_its_own(pair: tuple[Schema, Schema]) -> None:
    before, changed = pair
    first = initial(before, {type.table_key: f"T{n}" for n, type in enumerate(before)})
    then = after(plan_change(before, changed), first, "C")
    assert decode(encode(then), changed, where="x") == then
    kept = {one.id for one in then.types.values()} & {one.id for one in first.types.values()}
    plan = plan_change(before, changed)
    assert len(kept) == len(list(before)) - len(plan.dropped)

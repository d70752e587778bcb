"""The reasons to refuse a row: one short code per rule; there are no others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """The first rule that a row breaks: rules over single rows are checked first, then the others in this order."""

    BAD_VALUE = "bad_value"  # it does not fit the property's type, or can't be an id
    NULL = "null"  # a required value, or a value of the key, is missing
    ENUM = "enum"
    RANGE = "range"
    CHECK = "check"
    ORPHAN = "orphan"  # an end is neither in the graph nor among the accepted rows of this run
    EXISTS = "exists"  # appended, but its id exists in the graph
    DUPLICATE = "duplicate"  # another row of the run has its key, and is kept
    UNIQUE = "unique"
    CARDINALITY = "cardinality"


_BEGINNINGS: Mapping[str, Reason] = {
    "null value for ": Reason.NULL,
    "invalid enum value ": Reason.ENUM,
    "@range violation ": Reason.RANGE,
    "@check violation ": Reason.CHECK,
}


def reason_of(detail: str) -> Reason:
    """The code for a reason from `engine/rows/row_validation.py`, whose sentences begin with the rule."""
    found = (reason for beginning, reason in _BEGINNINGS.items() if detail.startswith(beginning))
    return next(found, Reason.BAD_VALUE)

"""Why a row is refused: a short code for each rule, of which there are no others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """The rule that a row breaks, once: what a row says of itself is judged first, and then these in their order."""

    BAD_VALUE = "bad_value"  # it does not fit the property's type, or can't be an id
    NULL = "null"  # nothing where something is required, or in the key
    ENUM = "enum"
    RANGE = "range"
    CHECK = "check"
    ORPHAN = "orphan"  # an end that is neither in the graph nor among the rows that this run accepts
    EXISTS = "exists"  # appended, but the graph has its id
    DUPLICATE = "duplicate"  # another row of the run has its key, and stays
    UNIQUE = "unique"
    CARDINALITY = "cardinality"


_BEGINNINGS: Mapping[str, Reason] = {
    "null value for ": Reason.NULL,
    "invalid enum value ": Reason.ENUM,
    "@range violation ": Reason.RANGE,
    "@check violation ": Reason.CHECK,
}


def reason_of(detail: str) -> Reason:
    """The code of what `engine.conform` says about a row; it says it in sentences that begin by the rule."""
    found = (reason for beginning, reason in _BEGINNINGS.items() if detail.startswith(beginning))
    return next(found, Reason.BAD_VALUE)

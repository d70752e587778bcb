"""What becomes of the values of a property whose type changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from omniray.engine.schema.types import INTEGER_LIMITS, EnumType, PropertyType, Scalar, ScalarType


class Conversion(StrEnum):
    """How the values of one type become those of another."""

    WIDENED = "widened"  # each keeps its value
    EXACT = "exact"  # each must keep its value: a large I64 has no equal F64
    NARROWED = "narrowed"  # each must fit; an F32 has fewer digits
    RELABELLED = "relabelled"  # stored alike: an enum's values are texts
    RESTRICTED = "restricted"  # stored alike, but only some texts are values of an enum


@dataclass(frozen=True, slots=True)
class Retype:
    """A property, by its new name, whose type changes to one that its values can be converted to."""

    name: str
    before: PropertyType
    after: PropertyType
    conversion: Conversion

    @property
    def rewrites(self) -> bool:
        """Whether the column is written anew."""
        return self.conversion in (Conversion.WIDENED, Conversion.EXACT, Conversion.NARROWED)


_WIDENED: Mapping[Scalar, tuple[Scalar, ...]] = {
    Scalar.I32: (Scalar.I64, Scalar.F64),
    Scalar.U32: (Scalar.U64, Scalar.I64, Scalar.F64),
    Scalar.F32: (Scalar.F64,),
}
_EXACT = {(Scalar.I64, Scalar.F64), (Scalar.U64, Scalar.F64)}
_TEXT = ScalarType(Scalar.STRING)


def conversion(before: PropertyType, after: PropertyType) -> Conversion | None:
    """How values of a type become values of another one; None if they can't. Two enums are compared apart."""
    match before, after:
        case EnumType(), ScalarType(Scalar.STRING):
            return Conversion.RELABELLED
        case ScalarType(Scalar.STRING), EnumType():
            return Conversion.RESTRICTED
        case ScalarType(old), ScalarType(new):
            return _of_scalars(old, new)
    return None


def makes_other_ids(before: PropertyType, after: PropertyType) -> bool:
    """Whether the ids that a key of one type makes differ from those of the other, value by value.

    An id is the value's text: that of a number depends on whether it is a float, and on how many digits it has.
    """
    return not (_is_integer(before) and _is_integer(after)) and before.arrow != after.arrow


def _of_scalars(old: Scalar, new: Scalar) -> Conversion | None:
    if new in _WIDENED.get(old, ()):
        return Conversion.WIDENED
    if (old, new) in _EXACT:
        return Conversion.EXACT
    if (old in INTEGER_LIMITS and new in INTEGER_LIMITS) or (old, new) == (Scalar.F64, Scalar.F32):
        return Conversion.NARROWED
    return None


def _is_integer(type: PropertyType) -> bool:
    return isinstance(type, ScalarType) and type.scalar in INTEGER_LIMITS

"""A condition on the rows of a table: one column compared with one value, or with several.

It is a value, and not yet an expression of Arrow, so that it can be sent to the process that has the table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

Comparison: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
_COMPARE: Mapping[Comparison, Callable[[Any, Any], pc.Expression]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """`values` have the column's type; all but `in` compare with the only one."""

    column: str
    comparison: Comparison
    values: pa.Array

    @property
    def expression(self) -> pc.Expression:
        """The condition as Arrow and Lance apply it."""
        column = pc.field(self.column)
        if self.comparison == "in":
            return column.isin(self.values)
        (value,) = self.values
        where = _COMPARE[self.comparison](column, value)
        if pa.types.is_floating(self.values.type) and self.comparison in (">", ">="):
            # NaN is the largest number in Lance and compares false in Arrow: both kinds of rows must be filtered alike.
            where &= column <= pa.scalar(math.inf, self.values.type)
        return where

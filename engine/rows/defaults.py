"""The default of a property as Arrow values."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from omniray.engine.rows.python_values import cast_objects
from omniray.engine.schema.types import Property


def default_column(property: Property, count: int) -> pa.Array:
    """The values of a property in rows that leave it out: its default, or null."""
    return pa.repeat(default_scalar(property), count)


@lru_cache(maxsize=1024)
def default_scalar(property: Property) -> pa.Scalar:
    """The default in the property's physical type; null if there is none."""
    return cast_objects([property.default], property.type).values[0]

"""The payload hash of a mutation; `rows/payload.py` says what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omniray.engine.query.statements import Query
from omniray.engine.query.values import read_param
from omniray.engine.rows.payload import hash_of


def mutation_hash(text: str, query: Query, params: Mapping[str, Any]) -> str:
    """The hash of one query of a text, with parameters that have been checked."""
    given = ((param, params.get(param.name)) for param in query.params)
    values = {param.name: None if value is None else read_param(value, param.type) for param, value in given}
    return hash_of(["Mutation", query.name, text.strip(), values])

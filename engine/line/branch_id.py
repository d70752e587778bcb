"""A branch of a graph: its name, and the ULID that identifies it for good."""

from __future__ import annotations

from dataclasses import dataclass

MAIN = "main"


@dataclass(frozen=True, slots=True)
class BranchId:
    """A branch: its name, and the ULID of its line, which tells it from later branches of the same name.

    The ULID of main's line is the graph's id. Everything stored holds the ULID; names are resolved at open alone.
    """

    name: str
    ulid: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_main(self) -> bool:
        return self.name == MAIN

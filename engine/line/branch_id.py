"""A branch of a graph, by the name that people use and by what lasts."""

from __future__ import annotations

from dataclasses import dataclass

MAIN = "main"


@dataclass(frozen=True, slots=True)
class BranchId:
    """A branch: its name, and the ULID of its line, which tells it from a namesake of another time.

    The ULID of main's line is the graph's id. Everything that lasts holds the ULID; names are resolved at open alone.
    """

    name: str
    ulid: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_main(self) -> bool:
        return self.name == MAIN

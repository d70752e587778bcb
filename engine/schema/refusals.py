"""Why a step of a schema change is refused: stable codes, each with a reason and a way round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A code for programs, and what a person is told: why, and what to do instead."""

    code: str
    reason: str
    advice: str

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "reason": self.reason, "advice": self.advice}


REQUIRED_WITHOUT_DEFAULT = Refusal(
    "required_without_default",
    "the rows that are there would have no value for a new required property",
    "give @default(…), or make it nullable with '?'",
)
UNSUPPORTED_RETYPE = Refusal(
    "unsupported_retype",
    "values of the one type can't be turned into values of the other",
    "add a property of the new type, fill it with a mutation or a load, and drop the old one",
)
KEY_CHANGED = Refusal(
    "key_changed",
    "the ids of nodes are made of their key, and edges name them",
    "add a node type with the new key, load the rows and their edges into it, and drop the old one",
)
KEY_RETYPED = Refusal(
    "key_retyped",
    "the ids of nodes are made of their key, and the values of the new type make other ids",
    "add a node type with the new key, load the rows and their edges into it, and drop the old one",
)
ENDS_CHANGED = Refusal(
    "ends_changed",
    "the edges that are there connect nodes of other types",
    "add an edge type between the other types, load its edges, and drop the old one",
)
RENAME_TAKEN = Refusal(
    "rename_taken",
    "@rename_from names something that is still there, but so is something of the new name",
    "remove @rename_from if the other one is to be dropped, or drop this one and rename the other one afterwards",
)
RENAMED_TWICE = Refusal(
    "renamed_twice",
    "@rename_from of another one names the same",
    "leave @rename_from at the one that takes over the data",
)
DATA_LOSS = Refusal(
    "data_loss",
    "data would be lost from the branch's newest state",
    "give --allow-data-loss (allow_data_loss=True) if that is meant; older commits keep the data until clean-up",
)

REFUSALS = {
    refusal.code: refusal
    for refusal in (
        REQUIRED_WITHOUT_DEFAULT,
        UNSUPPORTED_RETYPE,
        KEY_CHANGED,
        KEY_RETYPED,
        ENDS_CHANGED,
        RENAME_TAKEN,
        RENAMED_TWICE,
        DATA_LOSS,
    )
}

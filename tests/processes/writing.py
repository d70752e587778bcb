"""What a process of a pool does with a client that was sent to it; it imports nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import omniray


def written(client: omniray.Client, name: str, unwanted: Sequence[str]) -> tuple[omniray.WriteResult, list[str]]:
    """Load a person, and tell which of some modules are imported here."""
    with client:
        result = client.load([{"name": name}], type="Person")
    return result, [module for module in unwanted if module in sys.modules]

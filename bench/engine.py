"""The engine's benchmark: omniray beside plain Lance in the same run, each figure beside its target.

    python -m bench.engine [--only bulk|single|s3|history|lineage|branches] [--quick] [--json PATH]

It always exits with 0: a noisy machine is no reason for a build to fail. Read the verdicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from bench.branches import branches
from bench.bulk import bulk
from bench.history import history
from bench.lineage import lineage
from bench.measure import Section, print_section, write_json
from bench.remote import remote
from bench.single import single

SECTIONS: Mapping[str, Callable[..., Section]] = {
    "bulk": bulk,
    "single": single,
    "s3": remote,
    "history": history,
    "lineage": lineage,
    "branches": branches,
}
WIDTH_MIN = 120


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The engine beside the bare library, each figure beside its target.")
    parser.add_argument("--only", choices=list(SECTIONS), help="one section alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs; its figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there, too")
    args = parser.parse_args(arguments)
    console = Console()
    if console.width < WIDTH_MIN:
        console = Console(width=WIDTH_MIN)
    done: list[Section] = []
    for name, run in SECTIONS.items():
        if args.only in (None, name):
            section = run(quick=args.quick)
            print_section(console, section)
            done.append(section)
    if args.json is not None:
        write_json(args.json, done)


if __name__ == "__main__":
    main()

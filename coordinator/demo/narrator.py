"""Prints a demonstration and checks its claims: a false one ends it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from omniray.engine.base.printable import printable


class Narrator:
    """Prints the story on the terminal, and keeps the claims that were shown for the last lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._shown: list[str] = []

    def step(self, title: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left", style="cyan")

    def say(self, text: str) -> None:
        self.console.print(f"   {escape(printable(text))}", soft_wrap=True)

    def show(self, outcome: bool, sentence: str) -> None:
        """Print a claim that holds; a false one ends the demo."""
        if not outcome:
            raise SystemExit(printable(f"the demo did not show what it promised: {sentence}"))
        self._shown.append(sentence)
        self.console.print(f"   [green]✓[/] {escape(printable(sentence))}", soft_wrap=True)

    def end(self, seconds: float) -> None:
        self.console.print()
        self.console.rule(f"[bold]What was shown, in {seconds:.0f} s", align="left", style="green")
        for number, sentence in enumerate(self._shown, start=1):
            self.console.print(f"   {number}. {escape(printable(sentence))}", soft_wrap=True)

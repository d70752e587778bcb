"""Plots rates over writers as an SVG, without a library: logarithmic axes, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 440, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 46, 40
LEGEND_HEIGHT, LEGEND_STEP = 34, 90
PER_ROW = 2
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 13px } .tick { font-size: 11px; fill: #666 }
.grid { stroke: #8884; stroke-width: 1 } .line { stroke-width: 2; stroke-linejoin: round }
.c0 { stroke: #c2410c; fill: #c2410c } .c1 { stroke: #ca8a04; fill: #ca8a04 } .c2 { stroke: #2563eb; fill: #2563eb }
.c3 { stroke: #0d9488; fill: #0d9488 } .c4 { stroke: #7c3aed; fill: #7c3aed } polyline.line { fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .tick { fill: #aaa }
  .c0 { stroke: #fb923c; fill: #fb923c } .c1 { stroke: #facc15; fill: #facc15 } .c2 { stroke: #60a5fa; fill: #60a5fa }
  .c3 { stroke: #2dd4bf; fill: #2dd4bf } .c4 { stroke: #a78bfa; fill: #a78bfa }
}"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: a line of points (writers, commits per second) for each system."""

    title: str
    lines: Mapping[str, Sequence[Point]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`, spread logarithmically over pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def svg(panels: Sequence[Panel]) -> str:
    """All panels in one image, two in a row, under one legend."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: f"c{number % 5}" for number, name in enumerate(names)}
    width = max(WIDTH * min(PER_ROW, len(panels)), LEFT + LEGEND_STEP * len(names))
    height = LEGEND_HEIGHT + HEIGHT * math.ceil(len(panels) / PER_ROW)
    body = [*_legend(colours)]
    for number, panel in enumerate(panels):
        x, y = number % PER_ROW * WIDTH, LEGEND_HEIGHT + number // PER_ROW * HEIGHT
        body += [f'<g transform="translate({x},{y})">', *_panel(panel, colours), "</g>"]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def _legend(colours: Mapping[str, str]) -> list[str]:
    return [
        f'<circle class="{colour}" cx="{LEFT + number * LEGEND_STEP}" cy="18" r="4"/>'
        f'<text x="{LEFT + 10 + number * LEGEND_STEP}" y="22">{escape(name)}</text>'
        for number, (name, colour) in enumerate(colours.items())
    ]


def _panel(panel: Panel, colours: Mapping[str, str]) -> list[str]:
    drawn = {name: sorted((n, rate) for n, rate in line if rate > 0) for name, line in panel.lines.items()}
    points = [point for line in drawn.values() for point in line]
    title = f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>'
    if not points:
        return [title]
    across = Axis(*_span([n for n, _ in points], 2), LEFT, WIDTH - RIGHT)
    up = Axis(*_span([rate for _, rate in points], 10), HEIGHT - BOTTOM, TOP)
    lines = [part for name, line in drawn.items() for part in _line(line, colours[name], across, up)]
    return [title, *_grid(sorted({n for n, _ in points}), across, up), *lines]


def _span(values: Sequence[float], base: int) -> tuple[float, float]:
    """The two different powers of a base that enclose some values."""
    low = base ** math.floor(math.log(min(values), base) + 1e-9)
    high = base ** math.ceil(math.log(max(values), base) - 1e-9)
    return float(low), float(max(high, low * base))


def _grid(counts: Sequence[float], across: Axis, up: Axis) -> list[str]:
    parts = []
    for power in range(round(math.log10(up.low)), round(math.log10(up.high)) + 1):
        y = up.at(10.0**power)
        parts.append(f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{across.start - 6}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
    for count in counts:
        at = f'x="{across.at(count)}" y="{up.start + 18}"'
        parts.append(f'<text class="tick" {at} text-anchor="middle">{count:g}</text>')
    middle = (across.start + across.end) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{up.start + 33}" text-anchor="middle">writers</text>')
    parts.append(f'<text class="tick" x="4" y="{up.end - 13}">commits/s</text>')
    return parts


def _line(points: Sequence[Point], colour: str, across: Axis, up: Axis) -> list[str]:
    places = [(across.at(n), up.at(rate)) for n, rate in points]
    drawn = " ".join(f"{x},{y}" for x, y in places)
    dots = [f'<circle class="{colour}" cx="{x}" cy="{y}" r="3"/>' for x, y in places]
    return [f'<polyline class="{colour} line" points="{drawn}"/>', *dots]

"""Exports a publisher's gauges as Ray metrics, which Prometheus collects from each node."""

from __future__ import annotations

from omniray.coordinator.actors.cluster import ray
from omniray.coordinator.actors.gauges import Gauges

_BOUNDS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000]
_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024]
_TAGS = ("graph", "branch")


class ExportedGauges(Gauges):
    """Counts as `Gauges` does, and exports each count to Ray."""

    def __init__(self, uri: str, branch: str) -> None:
        super().__init__()
        ray()
        from ray.util import metrics

        tags = {"graph": uri, "branch": branch}

        def counter(name: str, what: str, *more: str) -> metrics.Counter:
            made = metrics.Counter(f"omniray_{name}", what, tag_keys=(*_TAGS, *more))
            made.set_default_tags(tags)
            return made

        def histogram(name: str, what: str, bounds: list[float], *more: str) -> metrics.Histogram:
            made = metrics.Histogram(f"omniray_{name}", what, boundaries=bounds, tag_keys=(*_TAGS, *more))
            made.set_default_tags(tags)
            return made

        self._commits = counter("commits", "Writes that were committed")
        self._refusals = counter("refusals", "Writes that were refused, by the kind of the error", "kind")
        self._sizes = histogram("round_commits", "Writes committed together in one round", list(map(float, _SIZES)))
        bounds = list(map(float, _BOUNDS_MS))
        self._phases = histogram("phase_ms", "How long a round takes, by step", bounds, "step")

    def judged(self, seconds: float) -> None:
        super().judged(seconds)
        self._phases.observe(seconds * 1e3, {"step": "judge"})

    def staged(self, seconds: float) -> None:
        super().staged(seconds)
        self._phases.observe(seconds * 1e3, {"step": "stage"})

    def landed(self, commits: int, put_s: float, round_s: float) -> None:
        super().landed(commits, put_s, round_s)
        if commits:
            self._commits.inc(commits)
            self._sizes.observe(commits)
        self._phases.observe(put_s * 1e3, {"step": "put"})
        self._phases.observe(round_s * 1e3, {"step": "round"})

    def refused(self, kind: str) -> None:
        super().refused(kind)
        self._refusals.inc(1, {"kind": kind})

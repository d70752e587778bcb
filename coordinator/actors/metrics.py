"""The gauges of a coordinator as Prometheus reads them: text, without the name of any tenant, branch or table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omniray.coordinator.actors.gauges import Gauges


def exposition(gauges: Gauges, *, waiting: int, behind: int, branches: int) -> str:
    """All metrics in the text format, over all branches. Times and rates are those of the last seconds."""
    rates = gauges.rates()
    lines = [
        *_metric("omniray_commits_total", "counter", "Writes that were committed", [("", gauges.commits)]),
        *_metric("omniray_rounds_total", "counter", "Rounds that were committed", [("", gauges.rounds)]),
        *_metric(
            "omniray_refusals_total", "counter", "Writes that were refused, by the kind of the error",
            [(f'{{kind="{kind}"}}', count) for kind, count in sorted(gauges.refusals.items())],
        ),
        *_metric("omniray_waiting_writes", "gauge", "Writes that wait for a round", [("", waiting)]),
        *_metric("omniray_phase_d_behind", "gauge", "Objects whose Phase D is not finished", [("", behind)]),
        *_metric("omniray_branches", "gauge", "Branches that are open to writes, main included", [("", branches)]),
        *_metric("omniray_commits_per_second", "gauge", "Writes committed per second", [("", rates.commits_per_s)]),
        *_metric("omniray_rounds_per_second", "gauge", "Rounds committed per second", [("", rates.rounds_per_s)]),
        *_metric("omniray_round_commits", "gauge", "Writes committed together in a round", [("", rates.group_size)]),
        *_metric(
            "omniray_step_seconds", "gauge", "How long the steps of a round take, medians",
            [(f'{{step="{step}"}}', ms / 1e3) for step, ms in _steps(rates.judge_ms, rates.stage_ms, rates.put_ms)],
        ),
        *_metric(
            "omniray_round_seconds", "gauge", "How long a round takes",
            [('{quantile="0.5"}', rates.round_ms / 1e3), ('{quantile="0.99"}', rates.round_ms_p99 / 1e3)],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _steps(judge_ms: float, stage_ms: float, put_ms: float) -> Sequence[tuple[str, float]]:
    return ("judge", judge_ms), ("stage", stage_ms), ("put", put_ms)


def _metric(name: str, kind: str, what: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{labels} {value:g}" if isinstance(value, float) else f"{name}{labels} {value}"

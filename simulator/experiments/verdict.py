"""One sentence that says whether a run met its SLO and what stood in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.experiments.bottleneck import ARRIVALS, Bottleneck

_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2EL"}


def verdict(own: Mapping[str, object], bottleneck: Bottleneck | None) -> str:
    """Return the verdict of a summary's own part.

    >>> own = {"attainment": 0.5, "attainment_target": 0.9, "slo": {"ttft_ms": 500.0}, "injected": 8}
    >>> verdict(own, None)
    'SLO missed: 50.0 % of 8 requests within TTFT <= 500 ms, target 90 %.'
    """
    attainment, target, slo = own["attainment"], own["attainment_target"], own["slo"]
    theirs = own.get("slo_by_tenant")
    if not isinstance(slo, Mapping) or not (slo or theirs):
        text = "No SLO given."
    elif not isinstance(attainment, float) or not isinstance(target, float):
        text = "No request arrived, so there is nothing to judge."
    else:
        word = "met" if attainment >= target else "missed"
        limits = ", ".join(f"{_NAMES[name]} <= {limit:g} ms" for name, limit in slo.items())
        if theirs:
            limits += f"{' or ' if limits else ''}their tenant's own limits"
        text = (
            f"SLO {word}: {100 * attainment:.1f} % of {own['injected']:,} requests within {limits}, "
            f"target {100 * target:g} %.{_within_error(own)}"
        )
    if bottleneck is None:
        return text
    if bottleneck.name == ARRIVALS:
        return f"{text} Bottleneck: none, {bottleneck.reason.removeprefix('twice of nothing helps: ')}."
    return f"{text} Bottleneck: {bottleneck.name} ({bottleneck.reason})."


def _within_error(own: Mapping[str, object]) -> str:
    """Say whether the verdict holds within the model's error, if that was drawn."""
    draws = own.get("model_draws")
    if not isinstance(draws, Mapping) or draws["slo_met"] is None:
        return ""
    return f" Met in {draws['slo_met']} of {draws['draws']} draws of the model's error."


def bottleneck_table(rows: Iterable[Mapping[str, float]]) -> str:
    """Return the runs behind a bottleneck, as a summary keeps them, as aligned text."""
    lines = [f"{'with twice the':<24}{'within SLO':>12}{'change':>10}{'output tok/s':>15}{'change':>10}"]
    for row in rows:
        lines.append(
            f"{row['what']:<24}{100 * row['attainment']:>11.1f}%{100 * row['attainment_gain']:>+9.1f}%"
            f"{row['output_throughput']:>15,.0f}{100 * row['throughput_gain']:>+9.1f}%"
        )
    return "\n".join(lines)

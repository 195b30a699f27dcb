"""Derive `simulator/workload/tables/*.json` from the Azure LLM inference traces of 2023.

    python scripts/fit_workload_tables.py AzureLLMInferenceTrace_conv.csv AzureLLMInferenceTrace_code.csv

The traces are at https://github.com/Azure/AzurePublicDataset (CC-BY-4.0). What is kept: the number of
arrivals in every minute; how arrivals cluster within a minute, as two states of activity whose levels and
dwells (STATES below) were scanned by hand until TTFT behind one simulated server had the median and p99 that
the trace gives it (`test_generated_load_queues_like_the_trace_it_was_fitted_to`);
classes of requests by prompt length with quantiles of their prompts and outputs; the classes' shares in
every minute. No record of a request is kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from simulator.workload.tables import TABLES
from simulator.workload.traces import read_trace
from simulator.workload.workload import Workload

BIN = 60.0  # s
P = [0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1]  # quantiles kept of each class
STATES = {  # levels (relative rates) and mean dwells in s
    "azure-conv": ([0.92, 1.08], [10.0, 10.0]),
    "azure-code": ([0.03, 1.0], [18.0, 10.0]),
}
CLASSES = {"azure-conv": 40, "azure-code": 40}


def fit(name: str, workload: Workload) -> dict[str, object]:
    """Return the table of one trace."""
    span, num_classes = float(workload.arrival[-1]), CLASSES[name]
    bins = (workload.arrival // BIN).astype(np.int64)
    order = np.lexsort((workload.num_output, workload.num_prompt))
    classes = np.empty(len(workload), np.int64)
    classes[order] = np.arange(len(workload)) * num_classes // len(workload)
    shares = np.zeros((bins[-1] + 1, num_classes), np.int64)
    np.add.at(shares, (bins, classes), 1)
    levels, dwell = STATES[name]
    return {
        "name": name,
        "source": f"Azure LLM inference trace 2023 ({name.removeprefix('azure-')}), Azure/AzurePublicDataset",
        "licence": "CC-BY-4.0",
        "attribution": "Microsoft Azure; Patel et al., Splitwise, ISCA 2024; aggregated",
        "arrivals": {
            "span_s": round(span, 3),
            "bin_s": BIN,
            "counts": np.bincount(bins).tolist(),
            "levels": levels,
            "dwell_s": dwell,
        },
        "lengths": {
            "span_s": round(span, 3),
            "bin_s": BIN,
            "p": P,
            "prompt": [_quantiles(workload.num_prompt[classes == c]) for c in range(num_classes)],
            "output": [_quantiles(workload.num_output[classes == c]) for c in range(num_classes)],
            "shares": shares.tolist(),
        },
    }


def _quantiles(x: np.ndarray) -> list[int]:
    """Return the quantiles of a class, the highest moved so that lines between them keep the mean."""
    law, weight = np.quantile(x, P), np.diff(P) / 2
    rest = (weight * law[:-1]).sum() + (weight[:-1] * law[1:-1]).sum()
    law[-1] = np.clip((x.mean() - rest) / weight[-1], law[-2], x.max())
    return [round(float(tokens)) for tokens in law]


def dump(table: dict[str, object]) -> str:
    """Write JSON with one line per row of numbers."""

    def rows(value: object, indent: str) -> str:
        if isinstance(value, dict):
            inner = ",\n".join(f"{indent} {json.dumps(k)}: {rows(v, indent + ' ')}" for k, v in value.items())
            return "{\n" + inner + "\n" + indent + "}"
        if isinstance(value, list) and value and isinstance(value[0], list):
            inner = ",\n".join(indent + " " + json.dumps(row, separators=(",", ":")) for row in value)
            return "[\n" + inner + "\n" + indent + "]"
        return json.dumps(value, separators=(",", ":"))

    return rows(table, "") + "\n"


if __name__ == "__main__":
    for name, path in zip(STATES, sys.argv[1:], strict=True):
        (TABLES / f"{name}.json").write_text(dump(fit(name, read_trace(Path(path)))), encoding="utf-8")

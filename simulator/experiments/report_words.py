"""The sentences of the report: how to read each figure, and what each word means.

Definitions are those of `vllm bench serve`.
"""

from __future__ import annotations

FIGURES: dict[str, tuple[str, dict[str, str]]] = {  # anchor: heading, and its figures with how to read them
    "latency": (
        "Latency",
        {
            "latency": "Curves further left are faster. Where one crosses the dashed line is the share of "
            "all injected requests within that SLO; one that ends below 100% lacks what never completed.",
            "itl": "What a reader sees between two tokens. Each rise is a kind of step that the engine "
            "makes: pure decodes on the left, decodes that share their step with a prompt on the right.",
        },
    ),
    "load": (
        "Load and batches",
        {
            "throughput": "Arrivals that stay above completions mean a growing queue: more is asked of the "
            "server than it can do.",
            "queue": "Waiting requests that come and go are bursts; waiting that only grows is overload.",
            "batch": "Prompt tokens make a step long, and every sequence that decodes in it waits for them. "
            "Pale areas reach from the smallest to the largest step, lines are means.",
        },
    ),
    "memory": (
        "KV cache",
        {
            "kv": "Near 100%, new requests wait for blocks. A triangle marks running requests that lost "
            "theirs and must compute them again; grey is cached prefixes that were overwritten.",
        },
    ),
    "timeline": (
        "Timeline",
        {
            "timeline": "Drag to zoom, double-click to reset; all figures over time follow. One bar is one "
            "request, in the uppermost free lane. Waiting again after a preemption is drawn as decode.",
        },
    ),
}

FLEET_FIGURES = {
    "replicas": "A row is a replica. Rows of one colour share the work evenly; one that stays bright has "
    "more than its share, or is slower.",
}

VOCABULARY = {
    "TTFT": "Time to first token: from arrival to the end of the step that sampled the first output token.",
    "TPOT": "Time per output token: (end-to-end latency − TTFT) / (output tokens − 1), one value per "
    "request. Requests with one output token are left out of its statistics and count as 0 for goodput.",
    "ITL": "Inter-token latency: one gap between two tokens of a request, pooled over all tokens of all "
    "requests. AIPerf gives this name to what is called TPOT here.",
    "E2E latency": "From arrival to the end of the step that sampled the last token.",
    "Goodput": "Requests that meet every SLO, per second.",
    "Attainment": "Requests that meet every SLO, as a share of all injected requests, whatever their fate.",
    "Jain's index": "(sum x)² / (n sum x²) over the tenants: 1 if all are equal, 1/n if one has everything. "
    "x is the tokens served (prompt and output) per weight, or the mean E2E latency per output token.",
    "Oldest wait": "The longest time between a request's arrival and the first step that computed any of it.",
    "Preemption": "A running request loses its KV blocks because the cache is full, and queues again.",
}

"""Replay recorded decisions of vLLM's scheduler through `chunked` and compare every field.

    python tests/conformance.py FILE...        exit 0 if nothing differs, else 1

A file holds one case a line, gzipped or not: the engine's settings, then per step the arrivals, what the
scheduler decided, the tokens sampled and what ended. The format is described in docs/conformance.md.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simulator.batch import Batch, Chunk, Sampled, StepResult
from simulator.kv.block_manager import BlockManager
from simulator.kv.prefix import PrefixIds
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.speculating import Speculation

METHODS = {"ngram": Speculation.by_ngram, "draft_model": Speculation.by_draft_model}


class Difference(NamedTuple):
    case: str
    step: int
    field: str
    recorded: object
    ours: object


class Player:
    """One recorded case: a scheduler of ours, and the token ids that an executor would keep."""

    def __init__(self, config: dict[str, Any], policy: type[Scheduler] = Chunked) -> None:
        self.block_size = config["block_size"]
        self.caching = config["enable_prefix_caching"]
        self.ids = PrefixIds(self.block_size)
        kv = BlockManager(
            config["usable_blocks"],
            self.block_size,
            enable_prefix_caching=self.caching,
            watermark_blocks=int(config["watermark"] * config["num_gpu_blocks"]),
        )
        self.scheduler = policy(
            kv,
            order=ORDERS[config["scheduling_policy"]],
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
            speculation=speculation(config),
        )
        self.live: dict[str, Sequence] = {}
        self.tokens: dict[str, list[int]] = {}
        self.drafts: dict[str, list[int]] = {}  # proposed last

    def add(self, arrival: dict[str, Any]) -> None:
        tokens = list(arrival["prompt"])
        seq = Sequence(
            arrival["id"],
            len(tokens),
            arrival["max_tokens"],
            arrival=arrival["arrival"],
            priority=arrival["priority"],
            hash_private_from=sys.maxsize if self.caching else 0,
        )
        if self.caching:
            self.ids.extend(seq.hash_ranges, 0, tokens)
        self.live[seq.id], self.tokens[seq.id] = seq, tokens
        self.scheduler.add(seq, arrival["arrival"])

    def decisions(self, batch: Batch, running_before: set[Sequence]) -> dict[str, Any]:
        s = self.scheduler
        held = {seq.id: seq.num_blocks for seq in s.running}
        decided = {
            "scheduled": [[seq.id, n] for seq, n in batch.rows(s.running)],
            "preempted": sorted(seq.id for seq in batch.preempted),
            "admitted_cached_tokens": {
                chunk.seq.id: chunk.cached for chunk in batch.chunks if chunk.seq not in running_before
            },
            "free_blocks": s.kv.num_free,
            "held_blocks": held,
            "running": [seq.id for seq in s.running],
            "waiting": [seq.id for seq in s.waiting],
        }
        if s.speculation is not None:
            decided["draft_tokens_scheduled"] = {
                chunk.seq.id: self.verified(chunk) for chunk in batch.chunks if chunk.num_draft
            }
        return decided

    def verified(self, chunk: Chunk) -> list[int]:
        """Return the draft tokens in a chunk; placeholders are -1."""
        return self.drafts[chunk.seq.id][: chunk.num_draft] if chunk.is_decode else [-1] * chunk.num_draft

    def samplers(self, batch: Batch) -> list[str]:
        """Name the sequences that sample a token in this step: all but the unfinished chunks."""
        unfinished = {chunk.seq for chunk in batch.chunks if not chunk.samples}
        return [seq.id for seq, _ in batch.rows(self.scheduler.running) if seq not in unfinished]

    def learn(
        self,
        batch: Batch,
        sampled: dict[str, list[int]],
        stopped: Iterable[str] = (),
        drafts: dict[str, list[int]] | None = None,
    ) -> dict[str, Any]:
        hashes = {}
        self.drafts |= drafts or {}
        for id, new in sampled.items():
            seq, tokens = self.live[id], self.tokens[id]
            have = len(tokens) // self.block_size
            tokens.extend(new)
            if self.caching and len(tokens) // self.block_size > have:
                ranges = list(seq.hash_ranges)
                self.ids.extend(ranges, have, tokens)
                hashes[seq] = ranges
        result = StepResult([self.live[id] for id in stopped], hashes)
        if self.scheduler.speculation is not None:
            result.sampled = {self.live[id]: Sampled(len(new), len(new) - 1) for id, new in sampled.items()}
            result.drafts = {self.live[id]: len(new) for id, new in (drafts or {}).items()}
        finished = self.scheduler.update(batch, result, 0.0)
        return {
            "finished": sorted(seq.id for seq in finished),
            "free_blocks_after": self.scheduler.kv.num_free,
        }


def recorded(step: dict[str, Any]) -> dict[str, object]:
    """Bring a recorded step into comparable form: sets sorted, pairs as lists."""
    drafts = ("draft_tokens_scheduled",) if "draft_tokens_scheduled" in step else ()
    return {name: step[name] for name in drafts} | {
        "scheduled": [list(row) for row in step["scheduled"]],
        "preempted": sorted(step["preempted"]),
        "admitted_cached_tokens": step["admitted_cached_tokens"],
        "free_blocks": step["free_blocks"],
        "held_blocks": step["held_blocks"],
        "running": step["running"],
        "waiting": step["waiting"],
        "sampled": sorted(step["sampled"]),
        "finished": sorted(step["finished"]),
        "free_blocks_after": step["free_blocks_after"],
    }


def replay(case: dict[str, Any], check_invariants: bool = False) -> tuple[list[Difference], Scheduler]:
    """Replay one case up to its first differing step; return the differences and the scheduler."""
    config = case["config"]
    name = f"{config['tier']} seed {config['seed']}"
    player = Player(config)
    for number, step in enumerate(case["steps"]):
        for arrival in step["arrivals"]:
            player.add(arrival)
        before = set(player.scheduler.running)
        batch = player.scheduler.schedule(float(number))
        ours = player.decisions(batch, before)
        ours["sampled"] = sorted(player.samplers(batch))
        if ours["sampled"] == sorted(step["sampled"]):
            ours |= player.learn(batch, step["sampled"], drafts=step.get("drafts_proposed"))
        if check_invariants:
            assert batch.num_tokens == sum(n for _, n in ours["scheduled"])
            player.scheduler.check()
        theirs = recorded(step)
        found = [
            Difference(name, number, field, theirs[field], ours.get(field))
            for field in theirs
            if theirs[field] != ours.get(field)
        ]
        if found:
            return found, player.scheduler
    return [], player.scheduler


def speculation(config: dict[str, Any]) -> Speculation | None:
    """Return how a recorded engine drafts, if it does."""
    method = config.get("speculative_method")
    return None if method is None else METHODS[method](config["num_speculative_tokens"])


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the cases of a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def main(paths: list[str]) -> int:
    """Replay files, print the count of differences and the first in full; 1 if there are any."""
    if not paths:
        print(__doc__)
        return 2
    cases = steps = grouped = listed = 0
    differences: list[Difference] = []
    for path in paths:
        for case in read_cases(Path(path)):
            found, scheduler = replay(case)
            cases += 1
            steps += len(case["steps"])
            grouped += scheduler.num_grouped_steps
            listed += scheduler.num_listed_steps
            differences += found
    print(f"cases {cases} steps {steps} differences {len(differences)}")
    print(f"aggregate path: {100 * grouped / max(1, grouped + listed):.1f} % of steps")
    if differences:
        first = differences[0]
        print(f"first difference: {first.case}, step {first.step}, field {first.field}")
        print(f"  recorded {first.recorded}\n  ours     {first.ours}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

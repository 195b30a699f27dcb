"""The engine's tables of physical blocks hold what the scheduler's counts say, under every policy.

A stand-in for the model writes each token's id where its K would go and, before it answers, reads back the
whole context of every row through the tables: a wrong block, one overwritten too early, or a hit on what was
never computed shows as a wrong id. Its answers depend on the context, so a sequence's tokens must be the same
whatever the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pairwise import pairwise  # noqa: E402
from test_every_policy import AXES, PLAIN, assert_conserved, load, run  # noqa: E402

from gpu_backend.block_tables import BlockTables  # noqa: E402
from gpu_backend.executor import TorchExecutor  # noqa: E402
from gpu_backend.kv_tensors import KvTensors  # noqa: E402
from gpu_backend.rows import Row  # noqa: E402
from gpu_backend.token_book import TokenBook, TokenIds  # noqa: E402
from simulator.engine.decisions import DecisionLog  # noqa: E402
from simulator.engine.oracle import SimulatedExecutor  # noqa: E402
from simulator.engine.serve import Served  # noqa: E402
from simulator.request import Request  # noqa: E402
from simulator.schedulers import Scheduler  # noqa: E402

VOCAB = 97


class Stamps:
    """Stands in for the runner: K is the token's id, the next token a hash of the context."""

    device = torch.device("cpu")

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.tables = BlockTables(num_blocks, block_size, -(-max_model_len // block_size) + 1, num_rows=2)
        self.tokens = TokenBook()
        self.kv = KvTensors(1, num_blocks, block_size, 1, 1, dtype=torch.float64, device=self.device)
        self.kv.pages.fill_(-1.0)
        self.num_hits = 0

    def run(self, rows: Sequence[Row]) -> Any:
        keys, size = self.kv.layer(0)[0].reshape(-1), self.kv.block_size
        for row in rows:
            if not row.is_padding:
                where = np.arange(row.start, row.end)
                slots = self.tables.of(row.seq)[where // size] * size + where % size
                keys[slots] = torch.from_numpy(self.tokens[row.seq][where].astype(float))
        answers = []
        for row in rows:
            if row.is_padding:
                continue
            where = np.arange(row.end)
            slots = self.tables.of(row.seq)[where // size] * size + where % size
            read = keys[slots].numpy()
            np.testing.assert_array_equal(read, self.tokens[row.seq][: row.end], err_msg=row.seq.id)
            if row.samples:
                answers.append(int(read @ (where + 1)) % VOCAB)
        self.tables.check()
        return torch.nn.functional.one_hot(torch.tensor(answers, dtype=torch.int64), VOCAB)


def ids_of(request: Request, index: int) -> TokenIds:
    """Requests of one family share their ids as far as they share hashes of blocks of four."""
    own = np.arange(request.num_prompt) * (index + 3) % VOCAB
    for lo, hi in request.block_hashes:
        own[: 4 * (hi - lo)] = np.arange(4 * lo, 4 * hi) * 7 % VOCAB
    return own.astype(np.int64)


def on_stamps(
    combination: dict[str, str], seed: int, **how: Any
) -> tuple[Served, list[Any], dict[int, list[int]], int]:
    made: list[TorchExecutor] = []

    def make(scheduler: Scheduler, simulated: SimulatedExecutor) -> TorchExecutor:
        stamps: Any = Stamps(scheduler.kv.pool.num_blocks, 4, scheduler.max_model_len)
        made.append(TorchExecutor(scheduler, simulated, stamps, ids_of, clock="predicted"))
        return made[0]

    log = DecisionLog()
    served = run(combination, seed, observers=[log], make_executor=make, **how)
    return served, log.lines, made[0].answers, made[0].num_mended


def assert_same_run(combination: dict[str, str], seed: int) -> None:
    log = DecisionLog()
    simulated = run(combination, seed, observers=[log])
    served, lines, answers, _ = on_stamps(combination, seed)
    assert lines == log.lines
    for name in ("step_table", "request_table"):
        mine, theirs = (
            getattr(each.recorder, name)(*([load(seed)] if name == "request_table" else []))
            for each in (served, simulated)
        )
        for field in fields(mine):
            np.testing.assert_array_equal(getattr(mine, field.name), getattr(theirs, field.name))
    assert_conserved(served, seed)
    expected = on_stamps(PLAIN, seed)[2]
    for index, answer in answers.items():
        both = min(len(answer), len(expected.get(index, answer)))
        assert answer[:both] == expected.get(index, answer)[:both]


@pytest.mark.parametrize("combination", pairwise(AXES), ids=lambda c: "-".join(c.values()))
def test_every_pair_of_policies_computes_with_the_right_blocks(combination: dict[str, str]) -> None:
    for seed in (0, 5, 8):
        assert_same_run(combination, seed)

"""The engine as a user holds it: a scenario, a device, a clock; `replay` gives a `Result`.

It builds what a simulation builds (scheduler, workload, memory counts) and hands the loop an executor that
runs a model. So a replay writes the same tables, log and summary, and `diff` can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import torch

from gpu_backend.attention.choose import choose_attention
from gpu_backend.block_tables import BlockTables
from gpu_backend.device import choose_device, device_name
from gpu_backend.drafting import DraftModelProposer, NgramProposer, Proposer
from gpu_backend.executor import GREEDY, Clock, TorchExecutor
from gpu_backend.graphs import DecodeGraphs, sizes_for
from gpu_backend.on_device import RANDOM, Place, check_types, dtype_for
from gpu_backend.runner import Runner
from gpu_backend.speculating import Speculator
from gpu_backend.token_book import TokenBook, TokenIds
from gpu_backend.tokens import prompt_tokens
from simulator.config.build import Machine, Policies, build_machine
from simulator.config.choose import choose
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.server import one_replica
from simulator.engine.oracle import SimulatedExecutor
from simulator.errors import ConfigError, suggest
from simulator.experiments.judge import judge
from simulator.experiments.progress import ProgressBar
from simulator.experiments.result import Result
from simulator.request import Request
from simulator.schedulers.base import Scheduler

CLOCKS: tuple[Clock, ...] = get_args(Clock)
CHUNKS = (2, 8, 32, 128)
"""Chunks to warm up with: for 1 to 8 query heads a KV head they meet each of `launch_shape`'s tiles."""


class Engine:
    """A model on a device, driven by the policies of a scenario.

    `weights` is a folder with a checkpoint, or "random"; so is `draft_weights`, of a draft model. `clock` is
    "wall" or "predicted" (see `executor`). Policies are those of `simulate`: batching, order, victim,
    eviction, preemption, admission, by name or as Python objects; or `policies` as a command has resolved
    them. `threads` bounds PyTorch's on the CPU. Without `kv_cache` every step computes its sequences from
    their first token on, as a naive decoder would. ConfigError or InputError says what cannot be used.
    """

    def __init__(
        self,
        scenario: str | Path | Mapping[str, Any] | Scenario = "tiny-cpu",
        *,
        device: str = "auto",
        clock: Clock | str = "wall",
        weights: str | Path = RANDOM,
        draft_weights: str | Path = RANDOM,
        attention: str = "auto",
        threads: int = 1,
        kv_cache: bool = True,
        set: Mapping[str, object] | None = None,
        trust: bool = False,
        policies: Policies | None = None,
        **axes: object,
    ) -> None:
        if threads < 1:
            raise ConfigError(f"--threads {threads}: must be >= 1")
        self.clock = _clock(clock)
        self.scenario, chosen = choose(scenario, set, trust=trust, **axes)
        self.policies = policies or chosen
        self.kv_cache = kv_cache
        self.device = choose_device(device)
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        one_replica(self.scenario, "the engine")
        for key in ("tensor_parallel_size", "pipeline_parallel_size"):
            gpus = getattr(self.scenario.parallel, key)
            if gpus > 1:
                raise ConfigError(f"parallel.{key}: the engine runs on one GPU, got {gpus}")
        self.machine: Machine = build_machine(self.scenario)
        check_types(self.machine.model, self.scenario.kv.kv_cache_dtype)
        self.dtype = dtype_for(self.machine.model, self.device)
        self._place = Place(self.scenario, self.machine, self.device, self.dtype)
        self.attention = choose_attention(
            attention, self.device, block_size=self.scenario.kv.block_size, dtype=self.dtype
        )
        self.weights, self.draft_weights = str(weights), str(draft_weights)
        self.decoder = self._place.load(weights)
        self.draft = self._place.load_draft(draft_weights)
        self.executor: TorchExecutor | None = None  # of the last replay
        self.on_step: Callable[[], object] | None = None  # called after each step's computation
        self._kv = self._place.pages(self.decoder.config)
        self._draft_kv = None if self.draft is None else self._place.pages(self.draft.config)
        self._graphs: DecodeGraphs | None = None  # captured by the first replay

    @property
    def kernels(self) -> str:
        """Name what computes a step, as a profile names what was measured."""
        kind = str(self.dtype).removeprefix("torch.")
        weights = "+int8" if self.machine.model.quantization == "int8" else ""
        cache = "" if self.kv_cache else ", no KV cache"
        return f"servetwin {self.attention.name}/{self.device.type}/{kind}{weights}{cache}"

    def replay(self, *, progress: bool | None = None) -> Result:
        """Serve the scenario's requests and return what came of them, decisions included."""
        return Result.of(self.run(progress=progress))

    def run(self, *, progress: bool | None = None) -> Run:
        """Serve the scenario's requests; `replay` wraps this for notebooks."""
        for kv in (self._kv, self._draft_kv):
            if kv is not None:
                kv.pages.zero_()
        with ProgressBar(f"{self.scenario.name} on {self.device}") as bar, self._place.telling_of_memory():
            made = run_scenario(
                self.scenario,
                policies=self.policies,
                machine=self.machine,
                decisions=True,
                progress=None if progress is False else bar,
                make_executor=self._executor,
            )
        made.own.update(self._provenance(made))
        judge(made, False)
        return made

    def _executor(self, scheduler: Scheduler, simulated: SimulatedExecutor) -> TorchExecutor:
        size = self._kv.block_size
        max_blocks = -(-self.machine.max_model_len // size) + 1
        tables = BlockTables(self.machine.kv.usable_blocks, size, max_blocks, scheduler.max_num_seqs)
        keys = self.scenario.speculative
        tokens = TokenBook(keys.num_speculative_tokens if keys else 0)
        if self._graphs is None and self.device.type == "cuda" and self.attention.name == "triton":
            self._graphs = DecodeGraphs(
                self.decoder,
                self._kv,
                self.attention,
                sizes=sizes_for(scheduler.max_num_seqs),
                width=max_blocks,
            )
        runner = Runner(self.decoder, self._kv, tables, tokens, self.attention, graphs=self._graphs)
        if self.clock == "wall":
            self._warm_up(runner, scheduler)
        self.executor = TorchExecutor(
            scheduler,
            simulated,
            runner,
            self.prompt,
            clock=self.clock,
            kv_cache=self.kv_cache,
            on_step=self.on_step,
            speculator=self._speculator(runner, scheduler),
        )
        return self.executor

    def _warm_up(self, runner: Runner, scheduler: Scheduler) -> None:
        """Let no step of a run compile a kernel, or be the first to need as much memory as a step may."""
        on_cuda = self.device.type == "cuda"
        runner.warm_up(chunks=(*CHUNKS, scheduler.max_num_batched_tokens) if on_cuda else ())

    def _speculator(self, runner: Runner, scheduler: Scheduler) -> Speculator | None:
        keys = self.scenario.speculative
        if keys is None:
            return None
        proposer: Proposer = NgramProposer(runner.tokens)
        if self.draft is not None and self._draft_kv is not None:
            drafter = Runner(self.draft, self._draft_kv, runner.tables, runner.tokens, self.attention)
            if self.clock == "wall":
                self._warm_up(drafter, scheduler)
            proposer = DraftModelProposer(drafter, lambda index: GREEDY)
        return Speculator(
            proposer,
            runner.tokens,
            lambda index: GREEDY,
            num_tokens=keys.num_speculative_tokens,
            max_model_len=self.machine.max_model_len,
        )

    def prompt(self, request: Request, index: int) -> TokenIds:
        """Return the token ids that stand for a request's prompt; `index` is its row in the workload."""
        size, vocab = self.scenario.kv.block_size, self.decoder.config.vocab_size
        return prompt_tokens(request, size, vocab, self.scenario.seed, index)

    def _provenance(self, made: Run) -> dict[str, object]:
        """Say in a run's summary what computed it; under the wall clock no latency model had a part in it."""
        assert self.executor is not None, "a run was made"
        own: dict[str, object] = {
            "backend": "gpu_backend",
            "clock": self.clock,
            "device": device_name(self.device),
            "kernels": self.kernels,
            "torch": torch.__version__,
            "weights": self.weights,
            "mended_tokens": self.executor.num_mended,
            **({"draft_weights": self.draft_weights} if self.draft is not None else {}),
        }
        if self.clock == "wall":
            measured = f"measured: {self.kernels} on {device_name(self.device)}"
            notes = [note for note in _notes(made) if note not in self.machine.notes]
            if self.scenario.scheduler.async_scheduling:
                notes.append("decided asynchronously, but computed step by step: host time is not hidden")
            own |= {"provenance": measured, "profile_error": None, "extrapolated_share": 0.0, "notes": notes}
        return own


def _clock(name: str) -> Clock:
    for clock in CLOCKS:
        if clock == name:
            return clock
    raise ConfigError(f"--clock {name[:40]!r}: unknown{suggest(name, CLOCKS)}")


def _notes(made: Run) -> list[str]:
    notes = made.own["notes"]
    assert isinstance(notes, list)
    return notes

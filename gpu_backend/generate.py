"""Answer prompts with a checkpoint: the same scheduler, block manager and executor, text at both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from gpu_backend.attention.choose import choose_attention
from gpu_backend.block_tables import BlockTables
from gpu_backend.device import check_room, choose_device
from gpu_backend.drafting import NgramProposer
from gpu_backend.executor import GREEDY, TorchExecutor
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.loader import load_decoder
from gpu_backend.model import Decoder
from gpu_backend.on_device import DTYPES
from gpu_backend.quant import quantize_decoder
from gpu_backend.runner import Runner
from gpu_backend.sampling import SamplingParams
from gpu_backend.speculating import Speculator
from gpu_backend.token_book import TokenBook, TokenIds
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.serve import serve
from simulator.errors import ConfigError, InputError
from simulator.kv.block_manager import BlockManager
from simulator.kv.prefix import PrefixIds
from simulator.latency.linear import LinearModel
from simulator.request import HashRange, Request
from simulator.schedulers import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.speculating import Speculation
from simulator.speculative import ByRate

BLOCK_SIZE = 16
UNASKED = ByRate([1.0], np.random.SeedSequence(0))  # the model itself says what is accepted
UNTIMED = LinearModel(constant=1.0)  # the wall clock counts; nothing here asks what a step would take


@dataclass(frozen=True)
class Options:
    """How prompts are answered; see `servetwin gpu generate --help`."""

    device: str = "auto"
    max_tokens: int = 64
    sampling: SamplingParams = GREEDY
    num_speculative_tokens: int = 0  # by n-gram lookup
    quantization: str | None = None

    def __post_init__(self) -> None:
        if self.quantization not in (None, "int8"):
            raise ConfigError(f"--quantization {self.quantization!r:.40}: must be int8")


class Answer(NamedTuple):
    prompt: str
    text: str
    token_ids: list[int]
    reason: str  # stop: the model ended it; length: max_tokens or the model's longest did


class Tokenizer(Protocol):
    """What is asked of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


def answer(folder: Path, prompts: Sequence[str], options: Options) -> list[Answer]:
    """Answer prompts together, as one batch; InputError or ConfigError says what cannot be used."""
    device = choose_device(options.device)
    tokenizer = read_tokenizer(folder)
    decoder = load_decoder(folder, device, DTYPES["float32" if device.type == "cpu" else "bfloat16"])
    if options.quantization:
        quantize_decoder(decoder)
    ids = [np.array(tokenizer.encode(prompt), dtype=np.int64) for prompt in prompts]
    for prompt, own in zip(prompts, ids, strict=True):
        if not 0 < len(own) < decoder.config.max_model_len:
            raise InputError(
                f"prompt {prompt[:40]!r}: has {len(own)} tokens; the model takes 1 to "
                f"{decoder.config.max_model_len - 1}"
            )
    found = complete(decoder, ids, options)
    stops = decoder.config.eos_token_ids
    answers = []
    for prompt, tokens in zip(prompts, found, strict=True):
        ended = bool(tokens) and tokens[-1] in stops
        text = tokenizer.decode(tokens[:-1] if ended else tokens)
        answers.append(Answer(prompt, text, tokens, "stop" if ended else "length"))
    return answers


def complete(decoder: Decoder, prompts: Sequence[TokenIds], options: Options) -> list[list[int]]:
    """Return the token ids of each answer, an end-of-sequence token included."""
    prefixes, config = PrefixIds(BLOCK_SIZE), decoder.config
    requests = [
        Request(str(i), 0.0, len(ids), options.max_tokens, options.max_tokens, _hashes(prefixes, ids))
        for i, ids in enumerate(prompts)
    ]
    num_draft = options.num_speculative_tokens
    longest = min(max(map(len, prompts)) + options.max_tokens + num_draft, config.max_model_len)
    num_blocks = len(prompts) * -(-longest // BLOCK_SIZE)
    sizes = (config.num_layers, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    num_bytes = 2 * int(np.prod(sizes)) * decoder.dtype.itemsize
    check_room(
        num_bytes, decoder.device, "the KV blocks of these prompts", "lower --max-tokens, or ask fewer"
    )
    scheduler = Chunked(
        BlockManager(num_blocks, BLOCK_SIZE),
        max_model_len=config.max_model_len,
        speculation=Speculation.by_ngram(num_draft) if num_draft else None,
    )
    made: list[TorchExecutor] = []

    def make(scheduler: Scheduler, simulated: SimulatedExecutor) -> TorchExecutor:
        tables = BlockTables(num_blocks, BLOCK_SIZE, -(-longest // BLOCK_SIZE) + 1, len(prompts))
        kv = KvTensors(*sizes, dtype=decoder.dtype, device=decoder.device)
        attention = choose_attention("auto", decoder.device, block_size=BLOCK_SIZE, dtype=decoder.dtype)
        tokens = TokenBook(num_draft)
        speculator = Speculator(
            NgramProposer(tokens),
            tokens,
            lambda index: options.sampling,
            num_tokens=num_draft,
            max_model_len=config.max_model_len,
        )
        executor = TorchExecutor(
            scheduler,
            simulated,
            Runner(decoder, kv, tables, tokens, attention),
            lambda request, index: prompts[index],
            sampling=lambda index: options.sampling,
            stop_ids=config.eos_token_ids,
            speculator=speculator if num_draft else None,
        )
        made.append(executor)
        return executor

    serve(requests, scheduler, UNTIMED, make_executor=make, acceptance=UNASKED if num_draft else None)
    return [made[0].answers[i] for i in range(len(prompts))]


def _hashes(prefixes: PrefixIds, ids: TokenIds) -> tuple[HashRange, ...]:
    """Name a prompt's full blocks by their content, so that prompts share what they begin with."""
    ranges: list[HashRange] = []
    prefixes.extend(ranges, 0, ids.tolist())
    return tuple(ranges)


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a folder's tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder}: has no tokenizer.json, so text cannot be turned into tokens")
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise ConfigError("gpu generate needs the tokenizers package: pip install 'servetwin[gpu]'") from None
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(f"{path}: is no tokenizer: {' '.join(str(error).split())[:120]}") from None
    return _Text(lambda text: backend.encode(text).ids, lambda ids: str(backend.decode(list(ids))))


class _Text(NamedTuple):
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

"""How many KV blocks a GPU has left for a model, and how many requests fit in them: every term shown.

    blocks = floor((gpu_memory_utilization * memory - weights - reserve) / block_bytes)

which is vLLM's rule (`determine_available_memory`), with the profiled activation peak and CUDA graphs
replaced by an assumed `reserve_gib`. Where vLLM's own number is known it is better: pass it as
`num_gpu_blocks_override`. All ranks of a tensor-parallel group are alike here, so one rank's count is the
pool's. The stages of a pipeline are not: each holds its own layers and their KV, the first the embedding and
the last the head, and the one with the fewest blocks decides for all. Left out: vLLM's hybrid manager (a
block has all layers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from simulator.errors import ConfigError
from simulator.specs import Hardware, Model, get_hardware, get_model
from simulator.specs.stages import stage_of, stage_weight_bytes

GIB = 2**30
GROUPS = (2, 4, 8)  # GPUs of one server that a model is spread over


@dataclass(frozen=True, slots=True)
class KvSize:
    """The terms of one KV pool. Bytes are those of one rank; a request holds `context` tokens."""

    model: str
    hardware: str
    tensor_parallel_size: int
    kv_cache_dtype: str
    block_size: int  # tokens
    bytes_per_token: int
    block_bytes: int
    memory_bytes: int
    gpu_memory_utilization: float
    weight_bytes: int
    reserve_bytes: int
    num_gpu_blocks: int  # vLLM's number
    is_override: bool  # num_gpu_blocks was given, not derived
    context: int  # tokens of one request, prompt and output together
    max_model_len: int  # the model's, in tokens
    request_bytes: int  # of one request, in whole blocks
    pipeline_parallel_size: int = 1
    stage: int = 0  # whose terms these are: the one that has the fewest blocks

    @property
    def usable_bytes(self) -> int:
        """Memory that vLLM may use: memory times utilisation."""
        return int(self.memory_bytes * self.gpu_memory_utilization)

    @property
    def pool_bytes(self) -> int:
        """All blocks."""
        return self.num_gpu_blocks * self.block_bytes

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: vLLM keeps one as its null block."""
        return self.num_gpu_blocks - 1

    @property
    def tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return self.usable_blocks * self.block_size

    @property
    def requests(self) -> int:
        """Requests of `context` tokens that fit at once."""
        return self.usable_blocks * self.block_bytes // self.request_bytes

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """Return all terms under their names."""
        derived = ("usable_bytes", "pool_bytes", "usable_blocks", "tokens", "requests")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def lines(self) -> list[str]:
        """Explain the size term by term; every figure names its unit."""
        tp = self.tensor_parallel_size
        pp = self.pipeline_parallel_size
        head = f"{self.model} on {self.hardware}" + (f", tensor parallel {tp}" if tp > 1 else "")
        head += f", stage {self.stage + 1} of {pp}, which has the fewest blocks" if pp > 1 else ""
        head += ", per GPU" if tp * pp > 1 else ""
        layers = "all layers" if pp == 1 else "the stage's layers"
        source = ", by the given number of blocks" if self.is_override else ""
        logged = f"vLLM logs {self.num_gpu_blocks * self.block_size:,}"
        rows = [
            ("KV per token", f"{self.bytes_per_token:,} bytes in {self.kv_cache_dtype}, {layers}"),
            ("KV block", f"{self.block_size} tokens, {self.block_bytes:,} bytes"),
            ("GPU memory", f"{_both(self.memory_bytes)}, as the device reports it"),
            (f"  x {self.gpu_memory_utilization:g}", _both(self.usable_bytes)),
            ("  - weights", _both(self.weight_bytes)),
            ("  - reserve", f"{_both(self.reserve_bytes)}, assumed: activations, CUDA graphs"),
            ("  = KV pool", f"{_both(self.pool_bytes)}{source}"),
            ("num_gpu_blocks", f"{self.num_gpu_blocks:,}, of which 1 is vLLM's null block"),
            ("tokens", f"{self.tokens:,} usable ({logged})"),
            ("requests", f"{self.requests:,} of {self.context:,} tokens (prompt and output){self._note()}"),
        ]
        return [f"{head} (GB = 1e9 bytes, GiB = 2**30 bytes)", *(f"{k:<16}{v}" for k, v in rows)]

    def _note(self) -> str:
        if self.context > self.max_model_len:
            return f"; beyond the model's max_model_len of {self.max_model_len:,}"
        if self.requests == 0 and self.context == self.max_model_len:
            return "; vLLM refuses to start unless max_model_len is lowered until one fits"
        return ""


def kv_size(
    model: Model | str,
    hardware: Hardware | str,
    *,
    context: int | None = None,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.92,
    reserve_gib: float = 2.5,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    num_gpu_blocks_override: int | None = None,
    draft: Model | None = None,
    pipeline_parallel_size: int = 1,
    quantization: str | None = None,
) -> KvSize:
    """Size the KV pool of a model on a GPU; `context` defaults to the model's max_model_len.

    Under pipeline parallelism the terms are those of the stage that has the fewest blocks. A `draft` model
    has its weights beside it and its KV in the same blocks; `quantization` (int8, int4, fp8) is the type of
    the model's linear layers. ConfigError says which term is out of range or too large.
    """
    model = get_model(model) if isinstance(model, str) else model
    model = model if quantization is None else model.quantized(quantization)
    hardware = get_hardware(hardware) if isinstance(hardware, str) else hardware
    context = model.max_model_len if context is None else context
    _check("gpu_memory_utilization", gpu_memory_utilization, 0 < gpu_memory_utilization <= 1, "in (0, 1]")
    _check("reserve_gib", reserve_gib, 0 <= reserve_gib < float("inf"), "finite and >= 0")
    counts = {"block_size": block_size, "context": context, "tensor_parallel_size": tensor_parallel_size}
    counts["pipeline_parallel_size"] = pipeline_parallel_size
    for field, value in counts.items():
        _check(field, value, value >= 1, ">= 1")
    models = [model] if draft is None else [model, draft]
    tokens = -(-context // block_size) * block_size
    size = KvSize(
        model=" with ".join(each.name for each in models),
        hardware=hardware.name,
        tensor_parallel_size=tensor_parallel_size,
        kv_cache_dtype=model.dtype if kv_cache_dtype == "auto" else kv_cache_dtype,
        block_size=block_size,
        bytes_per_token=0,
        block_bytes=0,
        memory_bytes=hardware.memory,
        gpu_memory_utilization=gpu_memory_utilization,
        weight_bytes=0,
        reserve_bytes=int(reserve_gib * GIB),
        num_gpu_blocks=num_gpu_blocks_override or 0,
        is_override=num_gpu_blocks_override is not None,
        context=context,
        max_model_len=model.max_model_len,
        request_bytes=0,
        pipeline_parallel_size=pipeline_parallel_size,
    )
    stages = [_stage(models, size, stage, tokens, kv_cache_dtype) for stage in range(pipeline_parallel_size)]
    size = min(stages, key=_free_blocks)
    try:
        return _derived(size)
    except ConfigError as error:
        fits = _group_that_fits(models, size)
        raise ConfigError(f"{error}{fits}") if fits else error from None


def _stage(models: list[Model], size: KvSize, stage: int, tokens: int, kv_dtype: str) -> KvSize:
    """Fill in what one stage holds; without a pipeline that is the whole model."""
    pp, tp = size.pipeline_parallel_size, size.tensor_parallel_size
    rank = (kv_dtype, tp)
    parts = [stage_of(each, stage, pp) for each in models]
    per_token = sum(part.kv_bytes_per_token(*rank) for part in parts)
    return replace(
        size,
        stage=stage,
        bytes_per_token=per_token,
        block_bytes=per_token * size.block_size,
        weight_bytes=sum(stage_weight_bytes(each, stage, pp, tp) for each in models),
        request_bytes=sum(part.kv_bytes(tokens, *rank) for part in parts),
    )


def _free_blocks(size: KvSize) -> int:
    return (size.usable_bytes - size.weight_bytes - size.reserve_bytes) // size.block_bytes


def _group_that_fits(models: list[Model], size: KvSize) -> str:
    """Name the smallest larger group on whose GPUs the model and one request fit; nothing if none does."""
    if size.pipeline_parallel_size > 1:
        return ""
    for gpus in GROUPS:
        try:
            rank = (size.kv_cache_dtype, gpus)
            weights = sum(each.weight_bytes(tensor_parallel_size=gpus) for each in models)
            block = size.block_size * sum(each.kv_bytes_per_token(*rank) for each in models)
        except ConfigError:  # heads or columns that this many GPUs cannot share
            continue
        blocks = pool_blocks([size.usable_bytes - weights - size.reserve_bytes], block)
        if gpus > size.tensor_parallel_size and blocks > max(1, -(-size.context // size.block_size)):
            return f"; tensor_parallel_size {gpus} fits"
    return ""


def _derived(size: KvSize) -> KvSize:
    """Fill in num_gpu_blocks unless it is given; ConfigError names the term that leaves too few."""
    if size.is_override:
        _check("num_gpu_blocks_override", size.num_gpu_blocks, size.num_gpu_blocks >= 2, ">= 2")
        return size
    left = size.usable_bytes - size.weight_bytes
    blocks = pool_blocks([left - size.reserve_bytes], size.block_bytes)
    if blocks >= 2:
        return replace(size, num_gpu_blocks=blocks)
    who = f"{size.model} on {size.hardware} with tensor_parallel_size {size.tensor_parallel_size}"
    if size.pipeline_parallel_size > 1:
        who += f", stage {size.stage + 1} of {size.pipeline_parallel_size}"
    share = f"gpu_memory_utilization {size.gpu_memory_utilization:g} x {_both(size.memory_bytes)}"
    if left <= 0:
        raise ConfigError(f"{who}: the weights take {_both(size.weight_bytes)} per GPU, more than {share}")
    rest = f"weights of {_both(size.weight_bytes)} leave {_both(left)} of {share}"
    if left <= size.reserve_bytes:
        raise ConfigError(f"{who}: reserve_gib takes {_both(size.reserve_bytes)}, but {rest}")
    raise ConfigError(
        f"{who}: block_size {size.block_size} makes blocks of {_both(size.block_bytes)}, but {rest}"
    )


def pool_blocks(free_bytes: Iterable[int], block_bytes: int) -> int:
    """Return the blocks of a pool that spans ranks, given each one's free bytes: the tightest decides.

    >>> pool_blocks([1000, 630], block_bytes=10)
    63
    """
    return max(0, min(free_bytes) // block_bytes)


def max_requests(pool_bytes: int, bytes_per_token: int, tokens: int) -> int:
    """Return how many requests of `tokens` fit in a pool, all in bytes and blocks left aside.

    >>> max_requests(66 * 2**30, 57344, 131072), max_requests(66 * 10**9, 57344, 131072)
    (9, 8)
    """
    return pool_bytes // (bytes_per_token * tokens)


def _check(field: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{field} must be {rule}, got {value}")


def _both(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB ({num_bytes / 1e9:.2f} GB)"

"""Where work is done: processes of this machine (loky), a Dask cluster or a Ray cluster, all through joblib.

Whoever has many independent pieces of work (a sweep, a search) opens a pool and gets results back as they
end. A function that is called there catches its own errors; what a pool raises is the pool's. On a cluster
every machine needs servetwin and, under the same paths, the files that scenarios name.
"""

from __future__ import annotations

import functools
import logging
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

from simulator.errors import ConfigError, InputError, suggest

BACKENDS = ("loky", "dask", "ray")
IDLE_S = 30
"""Seconds after which a worker without work ends, also one whose sweep was killed."""

MOST_WORKERS = 1_000
"""Processes of one machine; each takes about 100 MB."""

Item = TypeVar("Item")
Found = TypeVar("Found")


class Pool:
    """Worker processes. `num` is how many work at a time, 1 with `loky` being this process."""

    def __init__(self, backend: str, num: int, config: dict[str, Any]) -> None:
        self.backend = backend
        self.num = num
        self._config = config  # what joblib must know of the backend

    def each(
        self,
        function: Callable[[Item], Found],
        items: Iterable[Item],
        died: Callable[[Item], Found] | None = None,
    ) -> Iterator[tuple[int, Found]]:
        """Call the function with every item; yield (place of the item, result) as they end, in any order.

        With loky, an item whose process dies (out of memory, killed) is tried once more, alone, and then has
        the result of `died`. Closing the iterator stops the work.
        """
        if self.backend == "loky" and self.num == 1:
            for index, item in enumerate(items):
                yield index, function(item)
            return
        work = enumerate(items)
        under_way: dict[int, Item] = {}
        while True:
            try:
                for index, found in self._stream(function, _noting(work, under_way), self.num):
                    del under_way[index]
                    yield index, found
                return
            except Exception as error:
                if not _is_death(error):
                    raise InputError(f"the {self.backend} workers failed: {_brief(error)}") from error
                lost = dict(under_way)
                under_way.clear()
            for index, item in lost.items():
                yield index, self._alone(function, item, died)

    def _alone(
        self, function: Callable[[Item], Found], item: Item, died: Callable[[Item], Found] | None
    ) -> Found:
        """Try an item whose process may have died because of it, with nothing else beside it."""
        try:
            ((_, found),) = self._stream(function, iter([(0, item)]), 2)  # 1 would be this process
        except Exception as error:
            if not _is_death(error) or died is None:
                raise InputError(f"a worker process died: {_brief(error)}") from error
            return died(item)
        return found

    def _stream(
        self, function: Callable[[Item], Found], work: Iterator[tuple[int, Item]], num: int
    ) -> Iterator[tuple[int, Found]]:
        from joblib import Parallel, delayed, parallel_config

        with parallel_config(n_jobs=num, **self._config):
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
            numbered = delayed(functools.partial(_numbered, function))
            found = parallel(numbered(index, item) for index, item in work)
        # joblib warns of work that a stop throws away, within its own generator if that is where Ctrl-C comes
        warnings.filterwarnings("ignore", category=UserWarning, module="joblib.parallel")
        try:
            yield from found
        finally:
            found.close()


@contextmanager
def open_pool(
    backend: str = "loky", *, address: str | None = None, workers: int | None = None
) -> Iterator[Pool]:
    """Open a pool: `workers` processes (None: one a core), or those of the cluster at an address.

    Without an address Dask and Ray get a cluster of this machine, which ends with the pool. ConfigError for
    a backend that is not there.
    """
    check_backend(backend, address, workers)
    with ExitStack() as stack:
        if backend == "dask":
            yield _dask_pool(stack, address, workers)
        elif backend == "ray":
            yield _ray_pool(stack, address, workers)
        else:
            num = workers or num_cores()
            yield Pool(
                "loky",
                num,
                {"backend": "loky", "initializer": _ignore_interrupts, "idle_worker_timeout": IDLE_S},
            )


def check_backend(backend: str, address: str | None = None, workers: int | None = None) -> None:
    """Raise ConfigError for a backend that does not exist, or arguments that it cannot use."""
    if backend not in BACKENDS:
        raise ConfigError(f"--backend {backend!r:.60}: unknown{suggest(backend, BACKENDS)}")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"--workers: must be 1 to {MOST_WORKERS:,}, got {workers}")
    if address is not None and backend == "loky":
        raise ConfigError("--address: loky works on this machine; --backend dask or ray have an address")
    if backend != "loky":
        package = {"dask": "distributed"}.get(backend, backend)
        try:
            import_module(package)
        except ImportError:
            raise ConfigError(
                f"--backend {backend}: {package} is not installed; pip install 'servetwin[{backend}]'"
            ) from None


def num_cores() -> int:
    """Return how many processes this machine can run at a time."""
    from joblib import cpu_count

    return int(cpu_count())


def _dask_pool(stack: ExitStack, address: str | None, workers: int | None) -> Pool:
    distributed = import_module("distributed")
    try:
        if address is None:
            cluster = distributed.LocalCluster(
                n_workers=workers or num_cores(), threads_per_worker=1, dashboard_address=None
            )
            stack.enter_context(cluster)
            address = cluster.scheduler_address
        elif workers is not None:
            raise ConfigError("--workers: the cluster at --address has its own")
        else:  # a client of an address that is none never ends
            addressing = import_module("distributed.comm.addressing")
            addressing.get_address_host_port(addressing.normalize_address(address), strict=True)
        client = stack.enter_context(distributed.Client(address, set_as_default=False))
        num = sum(client.ncores().values())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--backend dask: no cluster at {address}: {_brief(error)}") from None
    if not num:
        raise InputError(f"--backend dask: the cluster at {address} has no workers")
    return Pool("dask", num, {"backend": "dask", "client": client})


def _ray_pool(stack: ExitStack, address: str | None, workers: int | None) -> Pool:
    ray = import_module("ray")
    if not ray.is_initialized():
        with suppress(ValueError):  # ray installs handlers of its own
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        options = {"address": address} if address else {"num_cpus": workers or num_cores()}
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"--backend ray: no cluster at {address}: {_brief(error)}") from None
        stack.callback(ray.shutdown)
    num = workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    backend = import_module("ray.util.joblib.ray_backend").RayBackend()
    backend.supports_return_generator = True  # it has the callbacks that a generator needs
    return Pool("ray", num, {"backend": backend})


def _numbered(function: Callable[[Item], Found], index: int, item: Item) -> tuple[int, Found]:
    return index, function(item)


def _noting(work: Iterator[tuple[int, Item]], under_way: dict[int, Item]) -> Iterator[tuple[int, Item]]:
    """Pass work on and note what was handed out."""
    for index, item in work:
        under_way[index] = item
        yield index, item


def _is_death(error: Exception) -> bool:
    """Say whether an error is loky's for a process that ended."""
    from joblib.externals.loky.process_executor import BrokenProcessPool

    return isinstance(error, BrokenProcessPool)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that gives out the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__

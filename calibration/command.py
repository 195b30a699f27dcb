"""What `calibrate fit` does once its arguments are read: find the files, fit, write, tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calibration.aiconfigurator import parquet_columns, read_aiconfigurator
from calibration.all_reduce_tables import is_all_reduces, read_all_reduces
from calibration.checks import Checked, check
from calibration.engine_command import run_engine_fit
from calibration.fit import ModelFit, choose, fit
from calibration.fit_all_reduce import AllReduceFit, fit_all_reduces
from calibration.fit_report import fit_html
from calibration.layers_command import has_layers, run_layers_fit
from calibration.llmservingsim import SOURCE as LAYERS_SOURCE
from calibration.llmservingsim import is_llmservingsim, read_llmservingsim
from calibration.profile_out import write_profile, write_text
from calibration.random_fifth import SEEDS
from calibration.timings import FITTED, Timing, read_timings_csv
from calibration.vidur import read_vidur
from calibration.write import ACCURACY, ASSUMED, HostTerms, profile_json
from simulator.errors import ConfigError, InputError, SimulatorError, suggest
from simulator.specs.hardware import get_hardware
from simulator.specs.models import Model
from simulator.specs.ranks import rank_of
from simulator.specs.shipped_models import get_model

MODELS = ("llama-2-7b", "llama-3-8b", "llama-3.1-8b", "qwen2.5-7b")
GROUP_MODELS = ("llama-2-70b", "llama-3.1-70b")  # too large for one GPU


def run_fit(
    paths: Sequence[Path],
    out: Path,
    hardware: str,
    models: Sequence[str],
    source: Sequence[str],
    host: HostTerms = ASSUMED,
    page: bool = True,
) -> Iterator[str]:
    """Fit, write the profile, read it back, and yield the lines to print; `page` adds NAME.html beside it."""
    gpu = get_hardware(hardware)
    chosen = _chosen(source)
    skipped: list[str] = []
    unfitted: Counter[str] = Counter()
    every = list(read_all(paths, skipped))
    if has_layers(every, gpu):
        yield from run_layers_fit(every, paths, out, gpu, models, None if host is ASSUMED else host)
        return
    ops = {t.op for t in every if t.source != LAYERS_SOURCE}
    if "dense" in ops and "gemm" not in ops:
        yield from run_engine_fit(every, paths, out, gpu, [get_model(name) for name in models], chosen)
        return
    try:
        checked = check(only_fitted(every, unfitted), gpu)
        groups = _groups(checked, chosen)
        fits = fit(checked, gpu, _wanted(models, [each.fitted.gpus for each in groups]), chosen)
    except SimulatorError as error:
        raise type(error)(f"{error}{_beside(unfitted)}") from None
    write_profile(profile_json(fits, checked, gpu, host, groups), out, [fitted.model for fitted in fits])
    if page:
        write_text(fit_html(fits, checked, gpu.name, out.name), out.with_suffix(".html"))
    yield from report(fits, checked, skipped)
    for group in groups:
        others = "".join(f"; {value:+.0%} against {name}" for name, value in group.opinions.items())
        yield f"all-reduce of {group.fitted.gpus} GPUs: {group.residual:.1%}; large messages{others}"
    if unfitted:
        yield f"  left out{_beside(unfitted)}"
    yield f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)" + (f" and {out.stem}.html" if page else "")


def _groups(checked: Checked, chosen: dict[str, str]) -> list[AllReduceFit]:
    """Fit the all-reduces, if the timings have any."""
    if not any(t.op == "all_reduce" for t in checked.timings):
        return []
    return fit_all_reduces(checked.timings, choose(checked.timings, "all_reduce", chosen))


def _wanted(models: Sequence[str], degrees: Sequence[int]) -> list[Model]:
    """Return the models to fit, and for each group size that was measured their ranks where they divide."""
    whole = [get_model(name) for name in models or MODELS]
    wanted = list(whole)
    for model in whole if models else [*whole, *(get_model(name) for name in GROUP_MODELS)]:
        for degree in degrees:
            try:
                wanted.append(rank_of(model, degree))
            except ConfigError:  # its heads or columns cannot be shared by so many
                continue
    return wanted


def only_fitted(timings: Iterable[Timing], unfitted: Counter[str]) -> Iterator[Timing]:
    """Pass the operations that are fitted on, and count the rows of the others."""
    for timing in timings:
        if timing.op in FITTED:
            yield timing
        else:
            unfitted[timing.op] += 1


def _beside(unfitted: Counter[str]) -> str:
    rows = ", ".join(f"{count} {op}" for op, count in sorted(unfitted.items()))
    return f"; rows of other operations, fitted only beside dense rows: {rows}" if rows else ""


def _chosen(source: Sequence[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for text in source:
        op, _, name = text.partition("=")
        if op not in (*FITTED, "dense") or not name:
            raise ConfigError(f"--source {text[:60]!r}: give OPERATION=SOURCE{suggest(op, FITTED)}")
        chosen[op] = name.strip().lower()
    return chosen


def read_all(paths: Sequence[Path], skipped: list[str]) -> Iterator[Timing]:
    """Read every file given; in a folder, skip what no adapter knows and say so in `skipped`."""
    for path in paths:
        if not path.is_dir():
            yield from read_file(path)
            continue
        for file in sorted(path.iterdir()):
            if file.suffix not in (".csv", ".parquet"):
                continue
            try:
                yield from read_file(file)
            except InputError as error:
                if "lacks" not in str(error):
                    raise
                skipped.append(file.name)


def read_file(path: Path) -> Iterator[Timing]:
    """Read one file by what it is: a peer's columns, or servetwin's own."""
    if path.suffix == ".parquet":
        tables = is_llmservingsim(parquet_columns(path))
        return read_llmservingsim(path) if tables else read_aiconfigurator(path)
    if path.suffix != ".csv":
        raise InputError(f"{path}: timings are .csv or .parquet files")
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline(2**16)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if is_all_reduces(header):
        return read_all_reduces(path)
    if is_llmservingsim(header.strip().split(",")):
        return read_llmservingsim(path)
    return read_vidur(path) if "time_stats." in header else read_timings_csv(path)


def report(fits: Sequence[ModelFit], checked: Checked, skipped: Sequence[str]) -> Iterator[str]:
    """Yield what a person should know of a fit, line by line."""
    yield f"{checked.read} rows read, {len(checked.timings)} configurations used"
    for reason, rows, example in checked.rejected:
        yield f"  {rows} rows left out: {reason}" + (f" (first: {example})" if example else "")
    if skipped:
        yield f"  files of other kinds skipped: {', '.join(skipped)}"
    yield "held-out error, mean: layer GEMMs | decode attention, grid (line) | prefill attention | whole step"
    for fitted in fits:
        yield from _report_model(fitted)
    yield ACCURACY


def _report_model(fitted: ModelFit) -> Iterator[str]:
    e = fitted.errors
    yield (
        f"  {fitted.model.name}: {e.dense:.1%} | {e.decode:.1%} ({e.decode_linear:.1%}) | "
        f"{e.prefill:.1%} | {e.step:.1%}"
    )
    fifths = (f"{name} {f.error.median:.1%} ({f.error.worst:.1%})" for name, f in fitted.fifths.items())
    yield f"    a random fifth held out, median of {SEEDS} seeds (worst): {', '.join(fifths)}"
    for how in dict.fromkeys(each.how for each in fitted.axes):
        axes = (
            f"{each.term} by {each.axis} {each.mean:.1%} ({each.worst:+.0%})"
            for each in fitted.axes
            if each.how == how
        )
        yield f"    {how}, mean (worst): {', '.join(axes)}"
    for source, level, between in fitted.opinions:
        knots = f"; between the knots {between:.1%}" if between is not None else ""
        yield f"    layer GEMMs against {source}: {level:.1%} apart on average{knots}"
    for note in fitted.notes if "/tp" not in fitted.model.name else ():
        yield f"    {note}"

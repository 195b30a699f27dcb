"""From timings to a profile: units, physics, held-out errors, choice of sources, the command."""

from __future__ import annotations

import builtins
import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.checks import check
from calibration.cli import app
from calibration.command import read_file, run_fit
from calibration.fit_attention import decode_grid, fit_prefill, head_tables
from calibration.fit_dense import Layer, add_edge, edge_rise, fit_roofline, gemm_grid, layer_gemms, monotone
from calibration.timings import MEASURED, NEEDED, UNITS, Timing
from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.profile_file import SHIPPED, load_profile
from simulator.latency.roofline import A100, PrefillTerms, Roofline
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

GPU = get_hardware("a100-80gb-sxm")
LLAMA = get_model("llama-3-8b")
TRUTH = Roofline.of(GPU, LLAMA)
PREFILL = PrefillTerms(14e-6, 1e-6, 30e-9, 0.1e-9, 0.0)
KERNELS = (
    "aic_a100_sxm_gemm_bf16.parquet",
    "aic_a100_sxm_context_attention_bf16.parquet",
    "aic_a100_sxm_generation_attention_bf16.parquet",
    "vidur_mlp_a100_tp1_llama2-7b_llama3-8b.csv",
    "aic_a100_sxm_custom_allreduce.csv",
    "vidur_allreduce_a100_dgx.csv",
)


def timing(op: str, seconds: float, source: str = "mine 1", **sizes: int) -> Timing:
    return Timing(op, seconds, source, GPU.name, **sizes)


def synthetic() -> list[Timing]:
    """A GPU that obeys the roofline exactly, on a small grid."""
    rows = [
        timing("gemm", float(TRUTH.gemm(m, n, k)), m=m, n=n, k=k)
        for n in (1024, 4096, 16_384, 65_536)
        for k in (1024, 4096, 16_384)
        for m in (1, 16, 64, 65, 128, 129, 193, 257, 385, 513, 769, 1024, 1025, 4096)
    ]
    rows += [
        timing("decode_attention", float(TRUTH.decode_attention(b, kv)), batch=b, kv=kv, heads=32, kv_heads=8)
        for b in (1, 8, 64, 256)
        for kv in (64, 128, 1024, 4096, 16_384)
        if b * kv <= 2**18
    ]
    for b in (1, 4, 16):
        for s in (16, 128, 1024, 8192):
            seconds = 14e-6 + 1e-6 * b + 30e-9 * b * s + 0.1e-9 * b * s * s / 2
            rows.append(timing("prefill_attention", seconds, batch=b, tokens=s, heads=32, kv_heads=8))
    rows += [
        timing("elementwise", float(TRUTH.elementwise(m)), m=m, n=TRUTH.elementwise_width) for m in (1, 4096)
    ]
    return rows


def as_csv(path: Path, rows: list[Timing], unit: str = "us", claimed: str | None = None) -> Path:
    columns = [
        "op",
        "m",
        "n",
        "k",
        "batch",
        "tokens",
        "kv",
        "heads",
        "kv_heads",
        "latency",
        "device",
        "source",
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*columns, "unit"] if claimed != "" else columns, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            latency = repr(row.seconds / UNITS[unit])
            writer.writerow({**row._asdict(), "latency": latency, "unit": claimed or unit})
    return path


def fit_to(path: Path, *timings: Path, model: str = "llama-3-8b") -> list[str]:
    return list(run_fit(timings, path, GPU.name, [model], []))


def test_a_gpu_that_obeys_the_roofline_is_recovered(tmp_path: Path) -> None:
    timings = as_csv(tmp_path / "t.csv", synthetic())
    fit_to(tmp_path / "p.json", timings)
    profile = load_profile(tmp_path / "p.json", "llama-3-8b")
    assert profile.error is not None
    assert profile.error < 0.01
    for m in (1, 128, 512, 4096):
        assert profile.dense[m] == pytest.approx(float(TRUTH.dense(m)), rel=0.03)
    step = StepFeatures.decode([3000] * 16)
    gpu = profile.step_time(step) - profile.host.per_step - 16 * profile.host.per_seq
    true = TRUTH.dense(16) + TRUTH.head(16) + 32 * TRUTH.decode_attention(16, 3000)
    assert gpu == pytest.approx(float(true), rel=0.01)


def test_ca_06_the_unit_column_decides(tmp_path: Path) -> None:
    written = []
    for unit in ("s", "ms", "us"):
        timings = as_csv(tmp_path / f"{unit}.csv", synthetic(), unit)
        fit_to(tmp_path / "p.json", timings)
        written.append((tmp_path / "p.json").read_bytes())
    assert written[0] == written[1] == written[2]


def test_ca_06_an_absent_or_wrong_unit_stops_the_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unit"):
        fit_to(tmp_path / "p.json", as_csv(tmp_path / "a.csv", synthetic(), "us", claimed=""))
    with pytest.raises(InputError, match="above the peak"):
        fit_to(tmp_path / "p.json", as_csv(tmp_path / "b.csv", synthetic(), "ms", claimed="us"))
    with pytest.raises(InputError, match="is the unit microseconds"):
        fit_to(tmp_path / "p.json", as_csv(tmp_path / "c.csv", synthetic(), "us", claimed="ms"))
    with pytest.raises(InputError, match=r"d\.csv:2: unit 'fortnights'"):
        fit_to(tmp_path / "p.json", as_csv(tmp_path / "d.csv", synthetic(), "us", claimed="fortnights"))
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("latency", "m", "complaint"),
    [
        ("nan", "1", "positive and finite"),
        ("-1", "1", "positive"),
        ("x", "1", "a number"),
        ("1", "1.5", "whole"),
        ("1", "0", "m must be >= 1"),
        ("1", "9" * 400, "between"),
    ],
)
def test_hostile_rows_are_named_by_line(tmp_path: Path, latency: str, m: str, complaint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"op,latency,unit,device,source,m,n,k\ngemm,{latency},us,x,y,{m},1,1\n")
    with pytest.raises(InputError, match=complaint) as caught:
        list(read_file(path))
    assert "t.csv:2" in str(caught.value)


def test_what_beats_the_peaks_is_left_out_and_duplicates_become_their_median() -> None:
    honest = timing("gemm", 1e-3, m=64, n=4096, k=4096)
    rows = [honest, honest._replace(seconds=3e-3), honest._replace(seconds=2e-3)]
    decode = timing("decode_attention", 1.0, batch=128, kv=4096, heads=32, kv_heads=32)
    prefill = timing("prefill_attention", 1.0, batch=1, tokens=4096, heads=32, kv_heads=32)
    rows += [decode, decode._replace(kv=8192, seconds=1e-6), prefill, prefill._replace(batch=2, seconds=1e-6)]
    rows.append(honest._replace(device="TPU"))
    checked = check(rows, GPU)
    assert checked.timings == [honest._replace(seconds=2e-3), decode, prefill]
    assert [(why.reason.split(" (")[0], why.rows) for why in checked.rejected] == [
        ("above the peak of 2.039 TB/s", 1),
        ("above the peak of 312 TFLOP/s", 1),
        ("measured on another device than a100-80gb-sxm", 1),
        ("repeats its configuration", 2),
    ]


def test_ca_02_noise_does_not_make_a_larger_step_cheaper() -> None:
    n = np.arange(1, 4097)
    noisy = (1 + 0.002 * n) * np.random.default_rng(0).lognormal(0, 0.05, len(n))
    smooth = monotone(noisy)
    assert np.diff(smooth).min() >= 0
    assert np.abs(smooth / (1 + 0.002 * n) - 1).mean() < 0.05


def test_the_four_numbers_of_the_roofline_are_recovered() -> None:
    start = TRUTH.with_efficiency(
        A100._replace(compute=0.7, bandwidth=0.6, sharpness=2.0, gemm_overhead=1e-6)
    )
    fitted = fit_roofline([t for t in synthetic() if t.op == "gemm"], start).efficiency
    assert fitted[:4] == pytest.approx(TRUTH.efficiency[:4], rel=0.01)


def test_a_missing_tile_edge_takes_its_rise_from_a_dense_sweep() -> None:
    sweep = [timing("gemm", s, m=m, n=1, k=1) for m, s in ((376, 0.9), (384, 1.0), (392, 1.25), (400, 1.3))]
    assert edge_rise(sweep, 384) == 1.25
    assert edge_rise(sweep, 128) is None
    layer = add_edge(Layer(np.array([256.0, 512.0]), np.array([2.0, 4.0])), 384, 1.25)
    assert layer.tokens.tolist() == [256, 385, 512]
    assert layer.seconds.tolist() == [2.0, 3.75, 4.0]


def test_a_second_source_gives_the_step_and_the_first_its_level() -> None:
    rows = [t for t in synthetic() if t.op == "gemm"]
    main = [t for t in rows if t.m in (1, 64, 128, 1024, 4096)]
    other = [t._replace(seconds=t.seconds * (3.0 if t.m == 129 else 2.0)) for t in rows]
    layer = layer_gemms(gemm_grid(main, TRUTH), TRUTH, gemm_grid(other, TRUTH))
    level = np.interp(129, [128, 1024], layer.seconds[np.isin(layer.tokens, (128, 1024))])
    assert layer.seconds[layer.tokens == 129] == pytest.approx(1.5 * level, rel=0.1)


@pytest.mark.parametrize(
    ("wanted", "measured", "weights"),
    [
        ((32, 8), [(32, 8), (32, 4)], {(32, 8): 1.0}),
        ((28, 4), [(24, 4), (32, 4), (32, 8)], {(24, 4): 0.5, (32, 4): 0.5}),
        ((32, 32), [(24, 24), (40, 40), (32, 8)], {(24, 24): 0.5, (40, 40): 0.5}),
        ((16, 4), [(24, 4), (32, 4)], {(24, 4): 1.0}),
        ((64, 4), [(24, 4), (32, 4)], {(32, 4): 1.0}),
    ],
)
def test_absent_heads_come_from_their_neighbours(
    wanted: tuple[int, int], measured: list[tuple[int, int]], weights: dict[tuple[int, int], float]
) -> None:
    rows = [timing("decode_attention", 1.0, batch=1, kv=1, heads=h, kv_heads=g) for h, g in measured]
    assert head_tables(rows, *wanted) == weights


def test_decode_grids_lose_outliers_and_go_on_where_memory_ended() -> None:
    cells = {(1, 1024): 20.0, (1, 2048): 80.0, (1, 4096): 30.0, (8, 1024): 40.0, (8, 2048): 60.0}
    rows = [
        timing("decode_attention", us * 1e-6, batch=b, kv=kv, heads=32, kv_heads=8)
        for (b, kv), us in cells.items()
    ]
    grid = decode_grid(rows, TRUTH)
    assert grid.outliers == ["batch 1, kv 2048: 80.0 us"]
    assert np.isnan(grid.measured[0, 1])
    assert (1e6 * grid.seconds[0]).tolist() == pytest.approx([20, 20 + 10 / 3, 30])
    slope = max(20 / 1024, 8 * 4096e6 / (TRUTH.efficiency.bandwidth * TRUTH.bandwidth))
    assert 1e6 * grid.seconds[1, 2] == pytest.approx(60 + 2048 * slope)


def test_prefill_of_other_heads_is_scaled_and_never_beats_the_peak() -> None:
    rows = [t for t in synthetic() if t.op == "prefill_attention"]
    line = fit_prefill(rows, TRUTH)
    assert line == pytest.approx(PREFILL[:4], rel=0.01)
    doubled = fit_prefill([t._replace(heads=64) for t in rows], TRUTH)
    assert doubled.per_token == pytest.approx(line.per_token / 2, rel=0.01)
    impossible = fit_prefill([t._replace(seconds=1e-5) for t in rows], TRUTH)
    assert impossible.per_work == TRUTH.pair_flops / TRUTH.flops


def test_the_command_fits_writes_and_tells(tmp_path: Path) -> None:
    timings = as_csv(tmp_path / "t.csv", synthetic())
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    out = tmp_path / "new" / "p.json"
    done = CliRunner().invoke(app, ["fit", str(tmp_path), "--model", "llama-3.1-8b", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "whole step" in done.output
    assert "other.csv" in done.output
    assert timings.exists()
    assert list(json.loads(out.read_text())["models"]) == ["llama-3.1-8b"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["absent.csv"],
        ["t.csv", "--model", "lama"],
        ["t.csv", "--hardware", "a1000"],
        ["t.csv", "--source", "gemm"],
        ["t.csv", "--source", "gemm=other"],
        ["notes.txt"],
    ],
)
def test_the_command_answers_mistakes_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    as_csv(Path("t.csv"), synthetic())
    done = CliRunner().invoke(app, ["fit", *arguments, "--model", "llama-3-8b"])
    assert done.exit_code == 2
    assert done.stderr.startswith("servetwin: ")
    assert done.stderr.count("\n") == 1


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_pyarrow(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]  # handed through

    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(InputError, match=r"pip install 'servetwin\[parquet\]'"):
        list(read_file(tmp_path / "t.parquet"))


def test_a_broken_parquet_file_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="not a parquet file") as caught:
        list(read_file(tmp_path / "t.parquet"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("models", [["llama-3-8b"], pytest.param([], id="all", marks=pytest.mark.slow)])
def test_the_shipped_profile_is_what_the_public_timings_give(
    models: list[str], tmp_path: Path, shared_data: Path
) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "a100.json"
    list(run_fit([shared_data / "kernels" / name for name in KERNELS], out, GPU.name, models, []))
    fresh, shipped = (json.loads(p.read_text()) for p in (out, SHIPPED / "a100-80gb-sxm.json"))
    sections = shipped["models"]
    if models:
        sections = {name: each for name, each in sections.items() if name.split("/")[0] in models}
    assert fresh["models"].keys() == sections.keys()
    for name, section in sections.items():
        assert fresh["models"][name]["layer"]["us"] == pytest.approx(section["layer"]["us"], rel=1e-3)
        assert fresh["models"][name]["held_out_error"] == pytest.approx(section["held_out_error"], abs=1e-3)
        assert section["held_out_error"]["step"] < 0.05
        assert section["held_out_error"]["decode"] < section["held_out_error"]["decode_linear"]
    assert fresh["rows"] == shipped["rows"]
    if models:  # the sources are those that the models chosen were fitted on
        assert [each for each in shipped["sources"] if each in fresh["sources"]] == fresh["sources"] != []
    else:
        assert fresh["sources"] == shipped["sources"]


@pytest.mark.parametrize("op", [op for op in MEASURED if op != "dense"])
def test_rows_that_are_not_fitted_are_read_checked_and_told(op: str, tmp_path: Path) -> None:
    sizes = dict.fromkeys(NEEDED[op], 2)
    row = {"op": op, "latency": 5, "unit": "us", "device": GPU.name, "source": "servetwin", **sizes}
    path = tmp_path / "timings.csv"
    path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    (read,) = read_file(path)
    assert (read.op, read.seconds) == (op, pytest.approx(5e-6))
    with pytest.raises(
        InputError, match=f"no rows; rows of other operations, fitted only beside dense rows: 1 {op}"
    ):
        list(run_fit([path], tmp_path / "p.json", GPU.name, [LLAMA.name], []))
    lacking = NEEDED[op][0]
    path.write_text(path.read_text().replace(f",{lacking}", ",other"))
    with pytest.raises(InputError, match=f"{lacking} must be >= 1 for {op}, got 0"):
        list(read_file(path))


def test_a_fit_leaves_out_what_it_cannot_use_and_says_so(tmp_path: Path) -> None:
    columns = ("op", *Timing._fields[4:], "latency", "unit", "device", "source")
    lines = [",".join(columns)]
    for t in [*synthetic(), timing("dense", 1e-3, m=8), timing("step", 1e-2, m=8, longest=8)]:
        told = t._asdict() | {"latency": t.seconds, "unit": "s"}
        lines.append(",".join(str(told[name]) for name in columns))
    path = tmp_path / "timings.csv"
    path.write_text("\n".join(lines) + "\n")
    told = list(run_fit([path], tmp_path / "p.json", GPU.name, [LLAMA.name], []))
    assert "  left out; rows of other operations, fitted only beside dense rows: 1 dense, 1 step" in told

"""`servetwin gpu`: what replay and generate write and print, and what they say to input that cannot be."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from command import Outcome, servetwin
from gpu_models import greedy, save_model
from test_two_clocks import BUSY
from test_two_clocks import model as model  # a fixture

from gpu_backend.generate import Options, complete
from gpu_backend.loader import load_decoder
from gpu_backend.sampling import SamplingParams
from simulator import diff, load_run

GPU = EntryPoint("gpu", "gpu_backend.cli:app", "servetwin.commands")
WORDS = ["<unk>", *(f"w{i}" for i in range(1, 97))]


def gpu(*args: object) -> Outcome:
    return servetwin("gpu", *args, commands=[GPU])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scenario(model: str, folder: Path) -> str:
    import yaml

    keys = BUSY | {"model": {"name": model, "max_model_len": 120}}
    (folder / "busy.yaml").write_text(yaml.safe_dump(keys))
    return str(folder / "busy.yaml")


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Any, Path]:
    path = tmp_path / "checkpoint"
    reference = save_model("llama 3.1", path)
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    return reference, path


# Replay.


def test_a_predicted_replay_is_the_simulated_run(scenario: str) -> None:
    made = gpu("replay", scenario, "--clock", "predicted", "--device", "cpu", "-o", "machine", "--no-report")
    assert made.code == 0, made.err
    simulated = servetwin("run", scenario, "--log", "all", "-o", "model", "--no-report")
    assert simulated.code == 0, simulated.err
    for name in ("requests.csv", "steps.csv", "decisions.jsonl", "scenario.yaml", "timeline.json.gz"):
        assert Path("machine", name).exists(), name
    for name in ("requests.csv", "steps.csv", "decisions.jsonl"):
        assert Path("machine", name).read_bytes() == Path("model", name).read_bytes(), name
    assert diff("machine", "model").divergence is None


def test_a_wall_clock_replay_says_what_computed_it(scenario: str) -> None:
    made = gpu("replay", scenario, "--device", "cpu", "--max-requests", 3, "-o", "out", "--json", "--quiet")
    assert (made.code, made.err) == (0, "")
    own = json.loads(made.out)["servetwin"]
    assert own["clock"] == "wall"
    assert own["kernels"] == "servetwin sdpa/cpu/float32"
    assert own["provenance"].startswith("measured: servetwin sdpa/cpu/float32 on ")
    assert own["profile_error"] is None
    assert own["completed"] == 3
    assert load_run("out").steps["end"].is_monotonic_increasing
    assert Path("out", "report.html").exists()


@pytest.mark.parametrize("most", [9, pytest.param(14, marks=pytest.mark.slow)])
def test_a_measured_request_is_explained_at_its_recorded_times(scenario: str, most: int) -> None:
    keys = "speculative={method: ngram, num_speculative_tokens: 2, acceptance: 0.5}"
    for args in ([], ["--set", keys]):
        few = ("--max-requests", most, "--quiet", "--no-report")  # it waits for arrivals, by the clock
        made = gpu("replay", scenario, "--device", "cpu", *few, "-o", "out", *args)
        assert made.code == 0, made.err
        run = load_run("out")
        for row in run.requests.itertuples():
            told = json.loads(json.dumps(run.explain(row.id).to_dict()))
            assert told["latency"] == pytest.approx(row.finish - row.arrival, rel=1e-9)
            if row.Index == 0:
                assert json.loads(servetwin("explain", "out", row.id, "--json").out) == told
            parts = sum(cause["seconds"] for cause in told["causes"])
            assert parts == pytest.approx(told["latency"], rel=1e-9)


def test_the_default_folder_is_not_the_simulations(scenario: str) -> None:
    made = gpu("replay", scenario, "--clock", "predicted", "--device", "cpu", "--max-requests", 2)
    assert made.code == 0, made.err
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-cpu-predicted")


def test_a_pytorch_trace_on_demand(scenario: str) -> None:
    made = gpu(
        "replay",
        scenario,
        "--device",
        "cpu",
        "--torch-profile",
        2,
        "--max-requests",
        3,
        "-o",
        "out",
        "--quiet",
    )
    assert (made.code, made.out) == (0, "")
    assert Path("out", "torch_trace.json.gz").stat().st_size > 100


def test_speculation_leaves_an_acceptance_log_that_a_scenario_takes(scenario: str) -> None:
    keys = "speculative={method: ngram, num_speculative_tokens: 2, acceptance: 0.5}"
    made = gpu("replay", scenario, "--clock", "predicted", "--device", "cpu", "--set", keys, "-o", "machine")
    assert made.code == 0, made.err
    keys = "speculative={method: ngram, num_speculative_tokens: 2, acceptance: machine/acceptance.csv}"
    simulated = servetwin("run", scenario, "--set", keys, "--log", "all", "-o", "model")
    assert simulated.code == 0, simulated.err
    assert Path("machine", "steps.csv").read_bytes() == Path("model", "steps.csv").read_bytes()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--device", "tpu"], "--device 'tpu': unknown"),
        (["--device", "cuda:x"], "--device 'cuda:x': unknown"),
        (["--threads", 0], "--threads 0: must be >= 1"),
        (["--clock", "sundial"], "--clock 'sundial': unknown; known: wall, predicted"),
        (["--attention", "flash"], "attention: 'flash' is unknown"),
        (["--attention", "triton", "--device", "cpu"], "attention: triton needs a CUDA device"),
        (["--weights", "nowhere"], "nowhere"),
        (["--set", "kv.num_gpu_blocks_override=1000000000"], "would fit; lower kv.gpu_memory_utilization"),
        (["--model", "llama-3.1-70b"], "the weights of llama-3.1-70b need"),
        (["--model", "mixtral-8x7b"], "which gpu_backend does not run"),
        (["--model", "deepseek-v3"], "the engine knows int8 weights only, got fp8"),
    ],
)
def test_what_cannot_be_replayed_is_told_in_one_line(scenario: str, args: list[str], words: str) -> None:
    assert words in gpu("replay", scenario, *args).complaint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_error_says_what_is_missing(scenario: str) -> None:
    complaint = gpu("replay", scenario, "--device", "cuda").complaint
    assert complaint.startswith("--device cuda: ")
    assert complaint.endswith("--device cpu runs the same engine on the CPU")


def test_a_checkpoint_of_another_shape_is_refused(scenario: str, checkpoint: tuple[Any, Path]) -> None:
    complaint = gpu("replay", scenario, "--device", "cpu", "--weights", checkpoint[1]).complaint
    assert "num_layers is 3, and 2 in the scenario's model" in complaint


def test_without_torch_the_error_names_the_extra(scenario: str) -> None:
    with patch("importlib.util.find_spec", return_value=None):
        complaint = gpu("replay", scenario).complaint
    assert complaint == "servetwin gpu needs PyTorch: pip install 'servetwin[gpu]'"


# Generate.


def test_generate_answers_as_transformers_does(checkpoint: tuple[Any, Path]) -> None:
    reference, path = checkpoint
    made = gpu("generate", path, "w3 w1 w4", "w1 w5 w9 w2 w6", "--max-tokens", 8, "--device", "cpu", "--json")
    assert made.code == 0, made.err
    answers = json.loads(made.out)
    for answer, prompt in zip(answers, ([3, 1, 4], [1, 5, 9, 2, 6]), strict=True):
        assert answer["token_ids"] == greedy(reference, prompt, 8)
        assert answer["text"].split() == [WORDS[i] for i in answer["token_ids"]]
        assert answer["reason"] == "length"


def test_generate_stops_at_an_end_token(tmp_path: Path) -> None:
    reference = save_model("qwen2", tmp_path)
    prompt = [3, 1, 4, 1, 5]
    plain = greedy(reference, prompt, 10)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": plain[4]}))
    decoder = load_decoder(tmp_path, "cpu", torch.float32)
    for num_draft in (0, 3):
        options = Options(device="cpu", max_tokens=10, num_speculative_tokens=num_draft)
        assert complete(decoder, [torch.tensor(prompt).numpy()], options) == [
            plain[: plain.index(plain[4]) + 1]
        ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_depends_on_neither_its_company_nor_drafts(
    checkpoint: tuple[Any, Path], temperature: float
) -> None:
    decoder = load_decoder(checkpoint[1], "cpu", torch.float32)
    prompts = [torch.arange(n).numpy() * 7 % 97 for n in (3, 40, 17)]
    sampling = SamplingParams(temperature, top_k=30, seed=5)
    found = [
        complete(decoder, prompts, Options("cpu", 20, sampling)),
        [complete(decoder, [prompt], Options("cpu", 20, sampling))[0] for prompt in prompts],
        complete(decoder, prompts, Options("cpu", 20, sampling, num_speculative_tokens=3)),
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere", "x"], "nowhere: has no tokenizer.json"),
        (["checkpoint", ""], "prompt '': has 0 tokens; the model takes 1 to 127"),
        (["checkpoint", "w1 " * 200], "has 200 tokens; the model takes 1 to 127"),
        (["checkpoint", "x", "--top-p", "2"], "--top-p must be in (0, 1], got 2.0"),
        (["checkpoint", "x", "--quantization", "int3"], "--quantization 'int3': must be int8"),
        (["checkpoint", "x", "--device", "abacus"], "--device 'abacus': unknown"),
    ],
)
def test_what_cannot_be_generated_is_told_in_one_line(
    checkpoint: tuple[Any, Path], args: list[str], words: str
) -> None:
    assert words in gpu("generate", *args).complaint


def test_a_broken_tokenizer_is_told(checkpoint: tuple[Any, Path]) -> None:
    (checkpoint[1] / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: is no tokenizer" in gpu("generate", checkpoint[1], "x").complaint


def test_info_names_the_device() -> None:
    made = gpu("info", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["device"].startswith(("cpu", "cuda"))

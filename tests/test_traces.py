"""Trace files: what is read, what is refused, what is counted, and the way back."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError, InputError
from simulator.workload import FORMATS, Workload, generate, read_trace, write_trace
from simulator.workload.traces import lines

COLUMNS = {"arrival": "ts", "prompt": "in", "output": "out"}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
EXAMPLES = {  # of our own making, in each format's fields; two requests each
    "azure": AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n46,GPT-4,9,1,10,API log\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.052,3180,8\n1.5,4,2\n",
    "splitwise": "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    "\n0,2,0,1,1,4096,32\n1,2,0,1.5,1,10,5\n",
    "apex": "ContextTokens,GeneratedTokens,StartTimeOffset\n156,67,197890289\n115,390,1500203480\n",
    "llmservingsim": '{"input_toks": 128, "output_toks": 512, "arrival_time_ns": 0, "input_tok_ids": [1]}\n'
    '{"input_toks": 9, "output_toks": 2, "arrival_time_ns": 2500000, "input_tok_ids": [1]}\n',
    "llmservingsim-agents": '{"session_id": "task-0", "arrival_time_ns": 4059740, "sub_requests": ['
    '{"input_toks": 1472, "output_toks": 133, "tool_duration_ns": 127348767}, '
    '{"input_toks": 1700, "output_toks": 20, "tool_duration_ns": 0}]}\n',
    "bailian": '{"chat_id": 55, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 20, '
    '"output_length": 132, "type": "text", "turn": 1, "hash_ids": [7, 8]}\n'
    '{"chat_id": 159, "parent_chat_id": 55, "timestamp": 90.5, "input_length": 110, '
    '"output_length": 9, "type": "text", "turn": 2, "hash_ids": [7, 9, 10, 11, 12, 13, 14]}\n',
    "mooncake": '{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 7, "output_length": 26, "hash_ids": [2353]}\n',
    "weka": '{"id": "trace_1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 6,'
    '"system_tokens": 5, "requests": [{"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 20, '
    '"hash_ids": [1, 2], "stop": "tool_use", "api_time": 3.5, "think_time": 0.0}, {"t": 9.0, "type": "s", '
    '"model": "m", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "stop": "", "think_time": 5.5}]}\n',
    "agent-requests": "session,agent,req,t_s,model,type,input_tokens,output_tokens,hit_blocks,total_blocks,"
    "think_time_s,api_time_s,ttft_s,stop\n"
    "trace_1,main,0,0.0,m,n,130,20,0,2,0.0,3.5,,tool_use\ntrace_1,main,1,9.0,m,s,200,7,2,3,5.5,,,\n",
    "sharegpt": "conversation,turn,role,tokens\n0,0,human,34\n0,1,gpt,244\n0,2,human,5\n0,3,gpt,9\n",
}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def generic(tmp_path: Path, rows: str, unit: str | None = "s", **columns: str) -> Workload:
    names = list((COLUMNS | columns).values())
    path = write(tmp_path / "t.csv", ",".join(names) + "\n" + rows)
    return read_trace(path, columns=COLUMNS | columns, time_unit=unit)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "servegen"])  # two files: test_servegen
def test_every_format_is_found_by_its_first_row(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "trace", EXAMPLES[name])
    found, named = read_trace(path), read_trace(path, format=name)
    assert found.arrival.tolist() == named.arrival.tolist()
    assert len(found) == 2
    assert found.arrival[0] == 0.0


def test_seven_digits_of_a_second_are_kept(tmp_path: Path) -> None:
    w = read_trace(write(tmp_path / "t.csv", EXAMPLES["azure"]))
    assert w.arrival.tolist() == [0.0, 0.052]
    assert (w.num_prompt.tolist(), w.num_output.tolist()) == ([4808, 3180], [10, 8])


def test_offsets_of_utc_are_applied(tmp_path: Path) -> None:
    stamps = ("10 00:00:00.009930+00:00", "10 01:30:01.009930+01:30", "10T00:00:02.00993Z")
    rows = [f"2024-05-{stamp},5,1\n" for stamp in stamps]
    assert read_trace(write(tmp_path / "t.csv", AZURE + "".join(rows))).arrival.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_ar_04_absolute_unsorted_stamps_in_any_unit(unit: str, factor: int, tmp_path: Path) -> None:
    stamps = [1_700_000_010, 1_700_000_000, 1_700_000_005]
    w = generic(tmp_path, "".join(f"{t * factor},{p},1\n" for p, t in enumerate(stamps, 1)), unit)
    assert w.arrival.tolist() == [0.0, 5.0, 10.0]
    assert w.num_prompt.tolist() == [2, 3, 1]
    assert w.scaled(2.0).arrival.tolist() == [0.0, 2.5, 5.0]


def test_ar_04_nanoseconds_lose_nothing(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    w = generic(tmp_path, f"{base},1,1\n{base + 1},1,1\n{base + 100},1,1\n", "ns")
    assert w.arrival.tolist() == [0.0, 1e-9, 1e-7]


@pytest.mark.parametrize(
    ("rows", "unit"),
    [
        ("1700000000,1,1\n1700000000000,1,1\n", "s"),
        ("12.5,1,1\n1700000000,1,1\n", "s"),
        ("1700000000,1,1\n2023-11-16 18:17:03,1,1\n", "s"),
        ("2023-11-16 18:17:03,1,1\n2023-11-16 18:17:03+00:00,1,1\n", None),
    ],
)
def test_ar_04_two_clocks_in_one_file_are_an_error(rows: str, unit: str | None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two clocks in one file"):
        generic(tmp_path, rows, unit)


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    assert generic(tmp_path, "5,1,1\n0,2,1\n5,3,1\n5,4,1\n").num_prompt.tolist() == [2, 1, 3, 4]


def test_ar_06_rows_that_are_no_requests_are_counted_by_reason(tmp_path: Path) -> None:
    w = generic(tmp_path, "0,100,10\n1,0,10\n2,100,0\n3,0,0\n4,50,1\n5,-5,3\n6,,7\n")
    assert len(w) == 2
    assert w.skipped == {"prompt < 1": 3, "output < 1": 1, "prompt is missing": 1}
    assert "skipped 3 of 7 rows: prompt < 1 (first at line 3)" in w.notes
    assert w.arrival.tolist() == [0.0, 4.0]


@pytest.mark.parametrize(
    "row",
    [
        "1,1000000000000,1",
        "1,1,1000000000",
        "1,9999999,2",
        "1,NaN,1",
        "1,Infinity,1",
        "1,1e9,1",
        "1,1_000,1",
        "1,12.5,1",
        "1," + "9" * 5000 + ",1",
        "NaN,1,1",
        "inf,1,1",
        "1e999999999,1,1",
        "soon,1,1",
        ",1,1",
        "1,1",
    ],
)
def test_se_05_a_hostile_row_is_skipped_with_its_line(row: str, tmp_path: Path) -> None:
    w = generic(tmp_path, f"0,5,5\n{row}\n2,5,5\n")
    assert len(w) == 2
    assert list(w.skipped.values()) == [1]
    assert "(first at line 3)" in w.notes[0]


@pytest.mark.parametrize(
    "row",
    [
        '{"timestamp": 1, "input_length": NaN, "output_length": 1}',
        '{"timestamp": Infinity, "input_length": 1, "output_length": 1}',
        '{"timestamp": 1e400, "input_length": 1, "output_length": 1}',
        '{"timestamp": 1, "input_length": 1e9, "output_length": 1}',
        '{"timestamp": 1, "input_length": true, "output_length": 1}',
        '{"timestamp": 1, "input_length": [1], "output_length": 1}',
        '{"timestamp": 1, "input_length": ' + "9" * 5000 + ', "output_length": 1}',
        '{"timestamp": 1, "input_length": 20, "output_length": 1, "hash_ids": [1, 2, 3]}',
        '{"timestamp": 1, "input_length": 20, "output_length": 1, "hash_ids": ["a"]}',
        '{"timestamp": 1, "input_length": 20, "output_length": 1, "hash_ids": 5}',
        '{"session_id": "s", "delay": 5, "input_length": 20, "output_length": 1}',
        "[" * 100_000,
        "not json",
        "[1, 2]",
    ],
)
def test_se_05_a_hostile_object_is_skipped_with_its_line(row: str, tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n'
    w = read_trace(write(tmp_path / "t.jsonl", good + row + "\n" + good))
    assert len(w) == 2
    assert list(w.skipped.values()) == [1]
    assert "(first at line 2)" in w.notes[0]


@pytest.mark.parametrize("ending", ["\n", ""])
def test_se_05_an_endless_line_is_skipped_without_being_held(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1000)
    w = generic(tmp_path, "0,5,5\n" + "7" * 50_000 + "\n2,5,5\n" + "8" * 5_000 + ending)
    assert w.skipped == {"line longer than 10 MiB": 2}
    assert "(first at line 3)" in w.notes[0]
    assert w.arrival.tolist() == [0.0, 2.0]


def test_an_open_quote_is_an_error_and_not_the_rest_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not csv"):
        generic(tmp_path, '0,5,"5\n' + "1,5,5\n" * 50_000)


def test_ar_08_mooncake_rows(tmp_path: Path) -> None:
    rows = [(0, 655, [46, 47]), (10535, 672, [46, 47]), (27482, 655, [46, 47]), (28000, 20, [1, 2])]
    text = "".join(
        json.dumps({"timestamp": t, "input_length": n, "output_length": 9, "hash_ids": ids}) + "\n"
        for t, n, ids in rows
    )
    w = read_trace(write(tmp_path / "t.jsonl", text))
    assert w.arrival.tolist() == [0.0, 10.535, 27.482]
    assert w.skipped == {"hash_ids are not one per 512 prompt tokens": 1}
    assert w.blocks is not None
    assert [w.blocks.of(i) for i in range(3)] == [[46, 47]] * 3


def test_prefix_ids_follow_their_rows_through_sorting(tmp_path: Path) -> None:
    text = '{"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
    text += '{"timestamp": 3, "input_length": 5, "output_length": 1, "hash_ids": [7]}\n'
    text += '{"timestamp": 5, "input_length": 5, "output_length": 1}\n'
    w = read_trace(write(tmp_path / "t.jsonl", text))
    assert w.blocks is not None
    assert [w.blocks.of(i) for i in range(3)] == [[7], [], [1, 2]]


def test_a_number_without_a_unit_is_asked_about_and_text_needs_none(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"line 2: arrival 5 is a number without a unit; give --time-unit s\|ms"
    ):
        generic(tmp_path, "5,1,1\n", None)
    assert generic(tmp_path, "2023-11-16 18:17:03,1,1\n", None).arrival.tolist() == [0.0]


def test_columns_may_name_keys_of_a_jsonl_and_optional_fields(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl", '{"a": 1.25, "b": 3, "c": 4, "who": "x"}\n{"a": 2.5, "b": 3, "c": 4}\n'
    )
    w = read_trace(
        path, columns={"arrival": "a", "prompt": "b", "output": "c", "tenant": "who"}, time_unit="s"
    )
    assert (w.arrival.tolist(), w.tenants) == ([0.0, 1.25], ["x", ""])
    extra = {"max_tokens": "mt", "priority": "pr", "id": "i", "timeout_s": "to"}
    w = generic(tmp_path, "0,1,1,64,2,a,\n1,1,1,,,b,30\n", **extra)
    assert (w.max_tokens.tolist(), w.priority.tolist(), w.ids) == ([64, 0], [2, 0], ["a", "b"])
    assert [r.timeout for r in w.requests] == [None, 30.0]
    assert generic(tmp_path, "0,1,1,a\n1,1,1,a\n", id="i").ids is None


@pytest.mark.parametrize(
    ("text", "options", "error", "words"),
    [
        ("", {}, InputError, "empty"),
        ("a,b\n1,2\n", {}, InputError, r"unknown trace format \(found a, b\).*azure.*--columns"),
        ("1,2,3\n", {}, InputError, "unknown trace format"),
        ('{"chat_id": 1, "timestamp": 1, "input_length": 3}\n', {}, InputError, "unknown trace format"),
        ('{"client": 1, "dataset": {}}\n', {}, InputError, "no rates; read its clients.csv"),
        ("num_prefill_tokens,num_decode_tokens\n5,5\n", {}, InputError, r"no arrival times \(arrived_at\)"),
        (AZURE, {}, InputError, "no row can be a request"),
        (AZURE + "2023-11-16 18:17:03,0,1\n", {}, InputError, "prompt < 1 \\(first at line 2\\)"),
        ("ts,in\n1,2\n", {"columns": COLUMNS, "time_unit": "s"}, InputError, "no column 'out' for output"),
        ('{"ts": 1}\n', {"columns": COLUMNS, "time_unit": "s"}, InputError, "no key 'in' for prompt"),
        ("a\n", {"columns": {"arival": "a"}}, ConfigError, "did you mean arrival"),
        (
            "a\n",
            {"columns": {"prompt": "a", "output": "a"}},
            ConfigError,
            "arrival not given; without arrival",
        ),
        ("a\n", {"columns": COLUMNS, "format": "azure"}, ConfigError, "cannot be combined"),
        ("a\n", {"format": "azur"}, ConfigError, "did you mean azure"),
        ("a\n", {"time_unit": "minutes"}, ConfigError, "must be s, ms, us or ns"),
    ],
)
def test_files_that_cannot_be_used_say_why(
    text: str, options: dict[str, object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as caught:
        read_trace(write(tmp_path / "t", text), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_compressed_files_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    data = EXAMPLES["vidur"].encode()
    for suffix, squeeze in ((".gz", gzip.compress), (".xz", lzma.compress)):
        path = tmp_path / f"t.csv{suffix}"
        path.write_bytes(squeeze(data))
        assert read_trace(path).num_prompt.tolist() == [3180, 4]
        path.write_bytes(squeeze(data * 1000)[:-20])
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(path)
        path.write_bytes(data)
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(path)
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.csv")


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "\ufeff" + EXAMPLES["vidur"].replace("\n", "\r\n\r\n"))
    assert read_trace(path).num_prompt.tolist() == [3180, 4]


@pytest.mark.parametrize(
    ("format", "name"), [("csv", "t.csv"), ("mooncake", "t.jsonl"), ("mooncake", "t.jsonl.gz")]
)
def test_what_is_written_reads_back(format: str, name: str, tmp_path: Path) -> None:
    drawn = generate(
        {"kind": "poisson", "rate": 7.0}, {"kind": "exponential", "prompt": 900, "output": 50}, 200
    )
    w = Workload(
        drawn.arrival - drawn.arrival[0],
        drawn.num_prompt,
        drawn.num_output,
        max_tokens=np.arange(200),
        priority=np.arange(200) % 3,
        timeout=np.where(np.arange(200) % 2, 1.5, np.nan),
        ids=[f"r,{i}" for i in range(200)],
        tenants=['a "b"', ""] * 100,
    )
    write_trace(w, tmp_path / name, format)
    back = read_trace(tmp_path / name)
    assert back.arrival == pytest.approx(w.arrival, abs=1e-9)
    for column in ("num_prompt", "num_output", "max_tokens", "priority", "timeout"):
        assert np.array_equal(getattr(back, column), getattr(w, column), equal_nan=column == "timeout")
    assert (back.ids, back.tenants) == (w.ids, w.tenants)


@pytest.mark.parametrize("block", [512, 16])
def test_prefix_ids_survive_the_way_through_mooncakes_form(block: int, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": block + 3, "output_length": 5, "hash_ids": [0, 9]}
    text = "".join(json.dumps(row | {"hash_ids": ids}) + "\n" for ids in ([0, 9], [0, 12]))
    path = write(tmp_path / "t.jsonl", text)
    w = read_trace(path, hash_block_size=block)
    write_trace(w, tmp_path / "back.jsonl")
    back = read_trace(tmp_path / "back.jsonl")
    assert back.blocks is not None
    assert back.blocks.block_size == block
    assert [back.blocks.of(i) for i in range(2)] == [[0, 9], [0, 12]]
    if block == 512:
        assert (tmp_path / "back.jsonl").read_text() == path.read_text()


def test_an_unknown_format_to_write_is_named(tmp_path: Path) -> None:
    w = generate({"kind": "all_at_once"}, {"kind": "constant", "prompt": 1, "output": 1}, 1)
    with pytest.raises(ConfigError, match="did you mean mooncake"):
        write_trace(w, tmp_path / "x", "moncake")

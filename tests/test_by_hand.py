"""Block tables and a prefix cache driven by hand: case KV-02, and that any moves keep the books."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kv.by_hand import BlockTables, PrefixCache, Served
from simulator.kv.eviction import EVICTIONS, Eviction, lru


def forked(num_blocks: int, num_tokens: int) -> BlockTables:
    tables = BlockTables(num_blocks, block_size=4)
    assert tables.add("parent", num_tokens)
    tables.fork("parent", "child")
    return tables


def test_kv_02_a_only_the_partial_block_is_copied() -> None:
    tables = forked(8, 10)
    log = [(tables.num_used, tables.holders())]
    assert tables.append("child")
    log.append((tables.num_used, tables.holders()))
    tables.free("child")
    log.append((tables.num_used, tables.holders()))
    tables.free("parent")
    log.append((tables.num_used, tables.holders()))
    assert log == [
        (3, {"parent": [2, 2, 2], "child": [2, 2, 2]}),
        (4, {"parent": [2, 2, 1], "child": [2, 2, 1]}),
        (3, {"parent": [1, 1, 1]}),
        (0, {}),
    ]


def test_kv_02_b_a_full_block_is_never_copied() -> None:
    tables = forked(8, 8)
    assert tables.append("child")
    assert (tables.num_used, tables.holders()) == (3, {"parent": [2, 2], "child": [2, 2, 1]})


def test_kv_02_c_a_write_without_room_changes_nothing() -> None:
    tables = forked(3, 10)
    before = tables.num_used, tables.holders()
    assert not tables.append("child")
    assert (tables.num_used, tables.holders()) == before
    tables.free("parent")
    assert tables.append("child")
    assert tables.num_used == 3


def test_what_does_not_fit_is_not_added() -> None:
    tables = BlockTables(2, block_size=4)
    assert not tables.add("a", 9)
    assert (tables.num_used, tables.holders()) == (0, {})


def test_names_are_checked() -> None:
    tables = forked(8, 4)
    with pytest.raises(ValueError, match="new name"):
        tables.add("child", 1)
    with pytest.raises(ValueError, match="no sequence 'chld'; there are parent, child"):
        tables.append("chld")


Moves = st.lists(st.tuples(st.sampled_from(["add", "fork", "append", "free"]), st.integers(0, 9)))


@given(moves=Moves, num_blocks=st.integers(1, 12))
def test_each_table_has_a_block_per_started_four_tokens_and_shares_add_up(
    moves: list[tuple[str, int]], num_blocks: int
) -> None:
    """Against counts kept apart; blocks in use are the sum of 1 / holders over all tables."""
    tables = BlockTables(num_blocks, block_size=4)
    tokens: dict[str, int] = {}
    for i, (move, n) in enumerate(moves):
        name = sorted(tokens)[n % len(tokens)] if tokens else ""
        if move == "add":
            if tables.add(str(i), n + 1):
                tokens[str(i)] = n + 1
        elif name and move == "fork":
            tables.fork(name, str(i))
            tokens[str(i)] = tokens[name]
        elif name and move == "append":
            tokens[name] += (n + 1) * tables.append(name, n + 1)
        elif name:
            tables.free(name)
            del tokens[name]
        held = tables.holders()
        assert {key: len(blocks) for key, blocks in held.items()} == {
            k: -(-v // 4) for k, v in tokens.items()
        }
        assert round(sum(1 / count for blocks in held.values() for count in blocks), 9) == tables.num_used
        assert tables.num_used + tables.num_free == num_blocks


def served(prompts: list[str], num_blocks: int = 8, eviction: Eviction = lru) -> list[Served]:
    cache = PrefixCache(num_blocks, block_size=4, eviction=eviction)
    return [cache.serve(prompt) for prompt in prompts]


def test_full_blocks_hit_and_never_the_whole_prompt() -> None:
    """Rule 6.3; a block is named by all that stands before it."""
    prompts = ["sys.toolHi!?", "sys.toolHi!?", "sys.toolHi!? Why?", "sys.toolHi!...", "Sys.toolHi!?"]
    assert [(each.num_cached, each.num_computed) for each in served(prompts, num_blocks=99)] == [
        (0, 12),
        (8, 4),
        (12, 5),
        (8, 6),
        (0, 12),
    ]


def test_the_tail_goes_first_and_the_prefix_released_last_goes_last() -> None:
    prompts = ["sys.tool.one", "sys.tool.two", "12345678901234567890", "sys."]
    assert [each.evicted for each in served(prompts, num_blocks=7)] == [[], [], [".one", ".two"], ["tool"]]
    assert served(prompts, num_blocks=5)[2].evicted == [".one", ".two", "tool", "sys."]


def test_another_eviction_makes_another_choice() -> None:
    prompts = ["sys.tool", "sys.tool?", "sys.tool!", "Once upon a time", "sys.tool"]
    assert served(prompts, num_blocks=4)[-1].num_cached == 0
    assert served(prompts + ["Another story..."] * 2 + ["sys.tool"], 6, EVICTIONS["lfu"])[-1].num_cached == 4


@pytest.mark.parametrize("name", EVICTIONS)
@given(prompts=st.lists(st.text("ab", min_size=1, max_size=20), max_size=12))
def test_any_eviction_finds_only_what_was_served_and_has_not_gone(name: str, prompts: list[str]) -> None:
    cache, known = PrefixCache(5, block_size=4, eviction=EVICTIONS[name]), set[str]()
    for prompt in prompts:
        each = cache.serve(prompt)
        blocks = {prompt[:end] for end in range(4, len(prompt) + 1, 4)}
        assert each.num_cached + each.num_computed == len(prompt)
        assert each.num_cached % 4 == 0
        assert all(prompt[:end] in known for end in range(4, each.num_cached + 1, 4))
        assert all(text in {block[-4:] for block in known} for text in each.evicted)
        known |= blocks


@pytest.mark.parametrize("prompt", ["", "x" * 33])
def test_a_prompt_that_cannot_be_served_is_refused(prompt: str) -> None:
    cache = PrefixCache(8, block_size=4)
    with pytest.raises(ValueError, match=f"1 to 32 tokens, got {len(prompt)}"):
        cache.serve(prompt)
    assert cache.serve("x" * 32).num_computed == 32

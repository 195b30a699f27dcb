"""Block tables driven by hand: case KV-02, and that any sequence of moves keeps the books."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kv.by_hand import BlockTables


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

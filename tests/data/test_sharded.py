"""Processes that share batches: together they read what one would."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from rltok_rl.data import OrderedSource, RepeatedSource, ShardedSource, TextSource, local_prose

TEXTS = [bytes([65 + n, 97, 98, 99, 100]) for n in range(26)]  # told apart by their first bytes


def inner(kind):
    if kind == "random":
        return TextSource(local_prose(3000))
    return OrderedSource(TextSource(TEXTS), length=5, seed=3)


def share(kind, rank, world_size, num_rows):
    return ShardedSource(inner(kind), rank=rank, world_size=world_size, num_rows=num_rows)


@pytest.mark.parametrize("kind", ["random", "ordered"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_row_i_is_the_same_for_any_number_of_processes(kind, world_size):
    """Twelve batches of 8, more than three epochs of 26 windows."""
    whole, alone = inner(kind), torch.Generator().manual_seed(0)
    n = 8 // world_size
    ranks = [(share(kind, r, world_size, n), torch.Generator().manual_seed(0)) for r in range(world_size)]
    for _ in range(12):
        want = whole.draw(8, 5, alone)
        parts = [source.draw(n, 5, generator) for source, generator in ranks]
        for name in ("byte_ids", "lengths", "ends"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(want, name))
    for _, generator in ranks:
        assert torch.equal(generator.get_state(), alone.get_state())


def test_an_epoch_is_shared_out_whatever_each_process_asks_for():
    """Uneven draws: no window twice in an epoch, none left out."""
    ranks = [share("ordered", r, 2, 13) for r in range(2)]
    sizes = [(1, 5, 13, 7), (9, 2, 2, 13)]
    firsts = Counter(
        int(row[0])
        for source, some in zip(ranks, sizes, strict=True)
        for n in some
        for row in source.draw(n, 5).byte_ids
    )
    assert sum(firsts.values()) == 52 and set(firsts.values()) == {2} and len(firsts) == 26


@pytest.mark.parametrize("kind", ["random", "ordered"])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (1,), (9, 2)])
def test_it_goes_on_where_it_stopped(kind, sizes):
    first, generator = share(kind, 1, 3, 4), torch.Generator().manual_seed(7)
    for n in sizes:
        first.draw(n, 5, generator)
    state, numbers = first.state_dict(), generator.get_state()
    want = first.draw(10, 5, generator).byte_ids
    second, other = share(kind, 1, 3, 4), torch.Generator()
    second.draw(3, 5, other)
    second.load_state_dict(state)
    other.set_state(numbers)
    assert torch.equal(second.draw(10, 5, other).byte_ids, want)


def test_a_state_between_batches_is_for_any_number_of_processes():
    two = [share("ordered", r, 2, 4) for r in range(2)]
    for source in two:
        source.draw(4, 5)
    assert two[0].state_dict() == two[1].state_dict()
    four = [share("ordered", r, 4, 2) for r in range(4)]
    for source in four:
        source.load_state_dict(two[0].state_dict())
    after = [torch.cat([source.draw(n, 5).byte_ids for source in group]) for group, n in ((two, 4), (four, 2))]
    assert torch.equal(*after)
    two[0].draw(3, 5)
    with pytest.raises(ValueError, match="state must be of the same share, because a batch was dealt in part"):
        four[0].load_state_dict(two[0].state_dict())


def test_siblings_stay_in_one_process():
    """Around the shares, a repetition gives the rows that it gives without them."""
    want = RepeatedSource(inner("random"), 2).draw(8, 5, torch.Generator().manual_seed(1)).byte_ids
    parts = [
        RepeatedSource(share("random", r, 2, 2), 2).draw(4, 5, torch.Generator().manual_seed(1)).byte_ids
        for r in range(2)
    ]
    assert torch.equal(torch.cat(parts), want)


def test_random_shares_have_no_state_between_batches():
    source = share("random", 0, 2, 4)
    source.draw(4, 5)
    assert source.state_dict() == {}
    source.draw(3, 5)
    assert set(source.state_dict()) == {"share", "waiting", "length"}
    with pytest.raises(ValueError, match="length must stay 5 until the rows that were picked with it are dealt"):
        source.draw(1, 6)
    source.load_state_dict({})
    assert source.state_dict() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank must lie in 0..1, got 2"),
        ({"rank": -1, "world_size": 2}, "rank must lie in 0..1, got -1"),
        ({"rank": 0, "world_size": 0}, "world_size must be an integer of at least 1, got 0"),
        ({"rank": 0, "world_size": 1, "num_rows": 0}, "num_rows must be an integer of at least 1, got 0"),
    ],
)
def test_shares_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        ShardedSource(inner("random"), **{"num_rows": 1, **options})
    with pytest.raises(ValueError, match=r"state must be of a ShardedSource, got the keys \['drawn'\]"):
        share("random", 0, 1, 1).load_state_dict({"drawn": 1})

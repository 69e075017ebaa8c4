"""Which snapshots are kept when there is no room for all: those that save the most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lingchat.runtime.state import Places


def test_nearest_is_the_latest_place_at_or_before() -> None:
    places = Places(4)
    for length in (10, 40, 90):
        places.keep(length)
    assert places.nearest(9) is None
    assert places.nearest(10) == 10
    assert places.nearest(89) == 40
    assert places.nearest(1000) == 90


def test_a_place_kept_twice_keeps_its_slot() -> None:
    places = Places(2)
    assert places.keep(5) == places.keep(5)
    assert places.lengths() == [5]


def test_without_room_nothing_is_kept() -> None:
    places = Places(0)
    assert places.keep(5) is None
    assert places.nearest(5) is None


def test_going_back_drops_what_came_later() -> None:
    places = Places(3)
    for length in (10, 20, 30):
        places.keep(length)
    places.drop_after(20)
    assert places.lengths() == [10, 20]
    assert places.keep(25) is not None


def test_the_cheapest_loss_goes_first() -> None:
    places = Places(3)
    for length in (100, 104, 1000):
        places.keep(length)
    places.keep(1100)  # 104 saves 4 tokens over 100
    assert places.lengths() == [100, 1000, 1100]


@given(st.lists(st.integers(1, 5000), unique=True, min_size=1, max_size=60), st.integers(1, 8))
def test_slots_are_distinct_and_the_newest_place_is_always_kept(lengths: list[int], room: int) -> None:
    places = Places(room)
    for length in sorted(lengths):
        places.keep(length)
        kept = places.lengths()
        assert length in kept
        assert len(kept) <= room
        slots = {places.slot(one) for one in kept}
        assert len(slots) == len(kept) and slots <= set(range(room))


def test_a_long_conversation_keeps_recent_places_dense_and_old_ones_sparse() -> None:
    places = Places(8)
    for length in range(100, 10_001, 100):
        places.keep(length)
    gaps = [b - a for a, b in zip([0, *places.lengths()], places.lengths(), strict=False)]
    assert gaps[-1] == 100
    assert gaps[0] > gaps[-1]

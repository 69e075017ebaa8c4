"""How cells are shared, by size and wish; and how a line drops what matters least, or a note takes what it needs."""

from __future__ import annotations

import pytest
from chat_app import running, script

from lingchat.ui.layout import after, layout
from lingchat.ui.widgets.status import Part, fit


@pytest.mark.parametrize(
    ("size", "latency", "tiny"),
    [
        ((200, 60), "panel", False),
        ((120, 40), "panel", False),
        ((119, 40), "strip", False),
        ((120, 19), "strip", False),
        ((80, 24), "strip", False),
        ((60, 15), "strip", False),
        ((59, 40), "off", True),
        ((200, 14), "off", True),
        ((40, 12), "off", True),
        ((20, 5), "off", True),
    ],
)
def test_automatic_choice(size: tuple[int, int], latency: str, tiny: bool) -> None:
    shape = layout(*size, None)
    assert (shape.latency, shape.tiny) == (latency, tiny)


def test_the_wish_counts_where_it_fits() -> None:
    assert layout(100, 30, "panel").latency == "panel"
    assert layout(80, 24, "panel").latency == "strip"
    assert layout(200, 60, "off").latency == "off"
    assert layout(40, 12, "panel").latency == "off"


def test_the_key_goes_round() -> None:
    assert [after("panel", 120), after("strip", 120), after("off", 120)] == ["strip", "off", "panel"]
    assert [after("strip", 80), after("off", 80)] == ["off", "strip"]


def test_a_line_drops_the_least_important_and_is_never_too_wide() -> None:
    left = [Part("state", rank=0), Part("counter", rank=1)]
    right = [Part("hint", rank=2), Part("other", rank=3)]
    for width in range(1, 60):
        assert fit(left, right, width).cell_length <= width
    assert "other" not in fit(left, right, 24).plain
    assert fit(left, right, 12).plain.strip().startswith("state")
    assert fit([Part("日本語日本語")], [], 5).cell_length <= 5


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_note_takes_the_rows_it_needs_at_the_width_it_has(size: tuple[int, int]) -> None:
    async with running(script(), size=size) as bench:
        for text in ("short", "as long as half a line, more than the panel is wide", "long " * 30, ""):
            bench.screen.note(text)
            await bench.pilot.pause()
            foot, prompt = bench.screen.query_one("#foot").region, bench.screen.prompt.region
            rows = -(-len(text.strip()) // (size[0] - 2)) if text else 0
            assert bench.screen.query_one("#notice").region.height == rows
            assert foot.bottom == prompt.bottom == size[1] - 1


async def test_f2_goes_round() -> None:
    async with running(script("x"), size=(120, 40)) as bench:
        shown = []
        for _ in range(4):
            shown.append((bench.screen.query_one("#dock").display, bench.screen.query_one("#strip").display))
            await bench.pilot.press("f2")
            await bench.pilot.pause()
        assert shown == [(True, False), (False, True), (False, False), (True, False)]

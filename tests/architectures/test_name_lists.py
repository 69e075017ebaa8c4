"""Very many names in few words, with none lost: what is written stands for exactly the names that were given."""

from __future__ import annotations

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from lingchat.architectures.name_lists import folded


def expanded(text: str) -> list[str]:
    """The names that one entry stands for."""
    name = re.sub(r" \(\d+ tensors\)", "", text, count=1)
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [[part] if i % 2 == 0 else numbers(part) for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def numbers(text: str) -> list[str]:
    ends = [part.split("-") for part in text.split(",")]
    return [str(n) for first, *last in ends for n in range(int(first), int(last[0] if last else first) + 1)]


def expert(layer: int, number: int, part: str = "up") -> str:
    return f"model.layers.{layer}.mlp.experts.{number}.{part}_proj.weight"


def test_whole_layers_of_experts_are_one_entry() -> None:
    names = [expert(layer, number, part) for layer in (1, 2, 3) for number in range(16) for part in ("up", "down")]
    assert folded(names) == [
        "model.layers.{1-3}.mlp.experts.{0-15}.up_proj.weight (48 tensors)",
        "model.layers.{1-3}.mlp.experts.{0-15}.down_proj.weight (48 tensors)",
    ]


def test_holes_show() -> None:
    names = [expert(layer, number) for layer in (1, 2) for number in (0, 1, 2, 7)] + [expert(3, 7)]
    assert folded(names) == [
        "model.layers.{1-2}.mlp.experts.{0-2,7}.up_proj.weight (8 tensors)",
        "model.layers.3.mlp.experts.7.up_proj.weight",
    ]


def test_what_is_said_of_a_tensor_stays_with_it() -> None:
    names = [f"{expert(1, n)} is (5, 160), not (32, 160)" for n in range(4)] + [f"{expert(1, 4)} is (6, 160)"]
    assert folded(names) == [
        "model.layers.1.mlp.experts.{0-3}.up_proj.weight is (5, 160), not (32, 160) (4 tensors)",
        f"{expert(1, 4)} is (6, 160)",
    ]


def test_numbers_that_are_written_otherwise_are_no_numbers() -> None:
    names = ["a.01.b", "a.1.b", "a.2.b", "conv1d.x", "layer"]
    assert folded(names) == ["a.01.b", "a.{1-2}.b (2 tensors)", "conv1d.x", "layer"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(expert, st.integers(0, 4), st.integers(0, 12), st.sampled_from(["up", "down"]))
        | st.sampled_from(["model.norm.weight", "x.007", "blk.3.ssm_a"]),
        unique=True,
    )
)
def test_no_name_is_lost_and_none_is_added(names: list[str]) -> None:
    assert sorted(name for entry in folded(names) for name in expanded(entry)) == sorted(names)

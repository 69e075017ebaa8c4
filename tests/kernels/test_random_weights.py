"""Random weights: no zero, no NaN, the asked spread in every type, and the same bytes whenever and wherever made."""

from __future__ import annotations

import math

import pytest
import torch

from lingchat.kernels.random_weights import INT4_GROUP, TYPES, RandomRaw, evenly, matrix, stored_bytes

STD = 0.02
SHAPES = ((300, 256), (3, 130, 256))  # rows that are no whole number of blocks; a stack of experts


def values(raw: RandomRaw) -> torch.Tensor:
    """The numbers, decoded here from the description of the types alone: fp64."""
    if raw.type in ("F32", "BF16"):
        return raw.data.view({"F32": torch.float32, "BF16": torch.bfloat16}[raw.type]).view(raw.shape).double()
    assert raw.scales is not None
    scales = values(raw.scales)
    if raw.type == "F8_E4M3":
        q = raw.data.view(torch.float8_e4m3fn).view(raw.shape).double()
        rows, columns = raw.shape[-2:]
        return q * scales.repeat_interleave(128, -2).repeat_interleave(128, -1)[..., :rows, :columns]
    nibbles = torch.stack((raw.data & 15, raw.data >> 4), dim=-1).view(raw.shape)
    return (nibbles.double() - 8) * scales.repeat_interleave(INT4_GROUP, -1)


def make(type: str, shape: tuple[int, ...], *, seed: int = 1, name: str = "w") -> RandomRaw:
    return matrix(name, type, shape, STD, seed=seed, device="cpu")


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_finite_never_zero_and_have_the_asked_spread(type: str, shape: tuple[int, ...]) -> None:
    raw = make(type, shape)
    x = values(raw)
    assert x.shape == shape
    assert torch.isfinite(x).all()
    assert (x != 0).all()
    assert x.std() == pytest.approx(STD, rel=0.05)
    assert abs(x.mean()) < 4 * STD / math.sqrt(x.numel())
    assert raw.nbytes == stored_bytes(type, shape)


@pytest.mark.parametrize("type", TYPES)
def test_no_two_rows_and_no_two_experts_are_alike(type: str) -> None:
    x = values(make(type, SHAPES[1])).view(-1, 256)
    assert len(torch.unique(x, dim=0)) == len(x)
    assert torch.corrcoef(x).fill_diagonal_(0).abs().max() < 0.45  # of 390 rows, each of 256 values


@pytest.mark.parametrize("type", TYPES)
def test_bytes_follow_from_seed_and_name_alone(type: str) -> None:
    shape = SHAPES[0]
    first = make(type, shape)
    make(type, shape, name="another in between")
    again = make(type, shape)
    assert torch.equal(first.data, again.data)
    for other in (make(type, shape, seed=2), make(type, shape, name="v")):
        assert not torch.equal(first.data, other.data)
        assert (values(first) == values(other)).double().mean() < 0.2  # of 8 nibbles one in 8 meets by chance


def test_a_tensor_of_many_chunks_is_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the pieces it is made in, which differs by device, must not show."""
    whole = {type: make(type, (300, 256)) for type in TYPES}
    monkeypatch.setattr("lingchat.kernels.random_weights._CHUNK_WORDS", {"cpu": 997})
    for type in TYPES:
        assert torch.equal(whole[type].data, make(type, (300, 256)).data)


def test_the_sequence_is_splitmix64() -> None:
    from lingchat.kernels.random_weights import _words

    words = next(_words(0, 3, torch.device("cpu"))).tolist()
    assert [word % 2**64 for word in words] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_an_even_range_is_filled_to_its_ends() -> None:
    x = values(evenly("norm", "F32", (4096,), 0.9, 1.1, seed=0, device="cpu"))
    assert 0.9 <= x.min() < 0.901
    assert 1.099 < x.max() <= 1.1
    assert x.mean() == pytest.approx(1.0, abs=0.005)


def test_int4_rows_must_be_whole_groups() -> None:
    with pytest.raises(ValueError, match="whole groups of 32"):
        make("I4", (4, 48))


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="Q4_1"):
        make("Q4_1", (4, 64))

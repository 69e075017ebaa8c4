"""The delta rule: rows and chunks against plain fp64, staging against single rows, gates against their owners'."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForgetGate, KimiLinearRMSNormGated

from lingchat.kernels import kda
from lingchat.kernels.rows import MAX_WIDTH, sigmoid

H, K, V, TAPS = 3, 16, 8, 4
Inputs = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


def made(rows: int, seed: int = 0, decay: str = "bounded", heads: int = H, width: int = K) -> Inputs:
    """q, k, v, g, beta and a state that is not zero."""
    torch.manual_seed(seed)
    q = kda.l2_normalize(torch.randn(rows, heads, width)) * width**-0.5
    k = kda.l2_normalize(torch.randn(rows, heads, width))
    g = {
        "bounded": lambda: -5 * torch.rand(rows, heads, width),
        "lowest": lambda: torch.full((rows, heads, width), -5.0),
        "gentle": lambda: -1e-3 * torch.rand(rows, heads, width),
        "none": lambda: torch.zeros(rows, heads, width),
        "far": lambda: -400 * torch.rand(rows, heads, width),
        # A channel forgets everything now and then, and keeps nearly all otherwise.
        "sudden": lambda: torch.where(torch.rand(rows, heads, width) < 0.2, -1000.0, -0.01),
    }[decay]()
    return q, k, torch.randn(rows, heads, V), g, torch.rand(rows, heads), torch.randn(heads, width, V)


def loop(q, k, v, g, beta, state) -> tuple[torch.Tensor, torch.Tensor]:
    """The four lines of the rule, row after row, in fp64."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    outs, states = [], []
    for t in range(len(q)):
        state = g[t].exp()[:, :, None] * state
        error = v[t] - (state * k[t, :, :, None]).sum(1)
        state = state + k[t, :, :, None] * (beta[t, :, None] * error)[:, None]
        outs.append((state * q[t, :, :, None]).sum(1))
        states.append(state)
    return torch.stack(outs), torch.stack(states)


def close(got: torch.Tensor, want: torch.Tensor, bound: float = 2e-6) -> None:
    assert torch.isfinite(got).all()
    assert (got.double() - want).abs().max() <= bound * want.abs().max().clamp_min(1)


@pytest.mark.parametrize("rows", [1, 3, 9, 65])
@pytest.mark.parametrize("decay", ["bounded", "gentle", "far"])
def test_the_recurrence_is_the_rule(rows: int, decay: str) -> None:
    inputs = made(rows, decay=decay)
    before = inputs[-1].clone()
    out, states = kda.recurrent(*inputs)
    want, want_states = loop(*inputs)
    close(out, want)
    close(states, want_states)
    assert torch.equal(inputs[-1], before)  # the committed state is only read


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 63, 64, 65, 130, 300])
@pytest.mark.parametrize("decay", ["bounded", "lowest", "gentle", "none", "far", "sudden"])
def test_chunks_are_the_rule(rows: int, decay: str) -> None:
    inputs = made(rows, seed=rows, decay=decay)
    before = inputs[-1].clone()
    out, final = kda.chunked(*inputs)
    want, want_states = loop(*inputs)
    close(out, want, 1e-5)
    close(final, want_states[-1], 1e-5)
    assert torch.equal(inputs[-1], before)


@pytest.mark.parametrize("chunk", [1, 2, 16, 128])
def test_chunks_of_other_sizes_are_the_rule_too(chunk: int) -> None:
    inputs = made(50, seed=7)
    out, final = kda.chunked(*inputs, chunk=chunk)
    want, want_states = loop(*inputs)
    close(out, want, 1e-5)
    close(final, want_states[-1], 1e-5)


@pytest.mark.parametrize("rows", [64, 65, 300])
def test_chunks_taken_together_as_on_a_device_are_the_rule(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = made(rows, seed=rows, decay="sudden")
    want, want_states = loop(*inputs)
    for size in (2, 64):  # two chunks of 64 at once, and all of them
        monkeypatch.setattr(kda, "_chunks_at_once", lambda device, size=size: size)
        out, final = kda.chunked(*inputs)
        close(out, want, 1e-5)
        close(final, want_states[-1], 1e-5)


def test_no_exponent_of_a_chunk_is_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 rows of -5 a factor exp(+320) would be infinite; with gentler ones it would only be wrong."""
    seen: list[float] = []
    exponential = torch.Tensor.exp

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.max()))
        return exponential(x)

    monkeypatch.setattr(torch.Tensor, "exp", watched)
    kda.chunked(*made(130, decay="bounded"))
    assert seen and max(seen) <= 0.0


def test_keys_that_repeat_do_not_break_a_chunk() -> None:
    """Equal keys, full write strength and no decay: the triangular system is as far from the identity as it gets."""
    q, k, v, g, beta, state = made(64, decay="none")
    k = k[:1].expand_as(k).contiguous()
    inputs = q, k, v, g, torch.ones_like(beta), state
    out, final = kda.chunked(*inputs)
    want, want_states = loop(*inputs)
    close(out, want, 1e-5)
    close(final, want_states[-1], 1e-5)


@pytest.mark.parametrize("width", [16, 33, 128])
@pytest.mark.parametrize("heads", [1, 3, 16])
def test_rows_are_the_same_bits_for_every_width(width: int, heads: int) -> None:
    q, k, v, g, beta, state = made(MAX_WIDTH, heads=heads, width=width)
    one = torch.empty(0)
    singles = []
    committed = state
    for r in range(MAX_WIDTH):
        here = slice(r, r + 1)
        one, states = kda.recurrent(q[here], k[here], v[here], g[here], beta[here], committed)
        committed = states[0]
        singles.append((one[0], committed))
    for rows in (2, 3, 5, 8, 9, MAX_WIDTH):
        out, states = kda.recurrent(q[:rows], k[:rows], v[:rows], g[:rows], beta[:rows], state)
        for r in range(rows):
            assert torch.equal(out[r], singles[r][0]) and torch.equal(states[r], singles[r][1]), (rows, r)


@pytest.mark.parametrize("heads", [1, 3, 16, 32])
@pytest.mark.parametrize("width", [8, 33, 128])
def test_everything_beside_the_recurrence_keeps_its_bits_too(heads: int, width: int) -> None:
    torch.manual_seed(1)
    rows, channels = MAX_WIDTH, heads * width
    wide = torch.randn(rows, 2 * channels + heads)  # as a projection leaves them: side by side
    f, u, b = wide.split((channels, channels, heads), dim=1)
    inputs, taps = torch.randn(TAPS - 1 + rows, 3 * channels), torch.randn(3 * channels, TAPS)
    rate, dt_bias, weight = torch.rand(heads) * 8, torch.randn(channels), torch.randn(width)
    heads_out = torch.randn(rows, heads, width)
    for n in (1, 2, 3, 7, 16):
        for r in range(n):
            one = slice(r, r + 1)
            convolved = kda.conv_silu(inputs[: TAPS - 1 + n], taps)
            assert torch.equal(convolved[one], kda.conv_silu(inputs[r : r + TAPS], taps))
            normal = kda.l2_normalize(convolved.view(n, 3 * heads, width))
            assert torch.equal(normal[one], kda.l2_normalize(convolved.view(n, 3 * heads, width)[one]))
            for gate in ("bounded", "softplus"):
                decay = kda.log_decay(f[:n], rate, dt_bias, gate, -5.0)
                assert torch.equal(decay[one], kda.log_decay(f[one], rate, dt_bias, gate, -5.0))
            assert torch.equal(sigmoid(b[:n])[one], sigmoid(b[one]))
            normed = kda.gated_norm(heads_out[:n], weight, 1e-6, u[:n])
            assert torch.equal(normed[one], kda.gated_norm(heads_out[one], weight, 1e-6, u[one]))


def test_convolution_is_causal_and_its_last_tap_meets_the_row_itself() -> None:
    torch.manual_seed(2)
    inputs, taps = torch.randn(TAPS - 1 + 9, 5), torch.randn(5, TAPS)
    want = F.silu(F.conv1d(inputs.double().T[None], taps.double()[:, None], groups=5)[0].T)
    close(kda.conv_silu(inputs, taps), want)
    only_last = torch.tensor([[0.0, 0.0, 0.0, 2.0]]).expand(5, TAPS)
    torch.testing.assert_close(kda.conv_silu(inputs, only_last), F.silu(2 * inputs[TAPS - 1 :]))
    rounded = inputs.bfloat16()
    assert torch.equal(kda.conv_silu(rounded, taps), kda.conv_silu(rounded.float(), taps))


def test_l2_normalize_has_its_epsilon_inside_the_root() -> None:
    tiny = torch.full((1, 4), 5e-4)  # the squares sum to 1e-6
    torch.testing.assert_close(kda.l2_normalize(tiny), tiny / (2e-6) ** 0.5)
    assert torch.equal(kda.l2_normalize(torch.zeros(1, 4)), torch.zeros(1, 4))


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_log_decay_is_the_gate_of_transformers(gate: str) -> None:
    torch.manual_seed(3)
    config = SimpleNamespace(linear_head_dim=K, linear_num_heads=H, hidden_size=12, linear_lower_bound=-5.0)
    config.head_dim, config.num_attention_heads, config.num_heads = K, H, H
    theirs = (Glm5NextTextForgetGate if gate == "bounded" else KimiLinearForgetGate)(config)
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn_like(parameter) * 1.5)
    x = torch.randn(1, 40, 12) * 5
    f = theirs.f_b_proj(theirs.f_a_proj(x))[0]
    assert f.max() > 25  # beyond the softplus' switch
    got = kda.log_decay(f, theirs.A_log.flatten().exp(), theirs.dt_bias, gate, -5.0)
    torch.testing.assert_close(got, theirs(x)[0], rtol=1e-5, atol=1e-6)
    assert (got <= 0).all() and (gate == "softplus" or (got >= -5).all())


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="no KDA gate 'tanh'"):
        kda.log_decay(torch.zeros(1, 4), torch.ones(1), torch.zeros(4), "tanh", -5.0)


def test_gated_norm_is_the_one_of_transformers() -> None:
    torch.manual_seed(4)
    theirs = KimiLinearRMSNormGated(V, eps=1e-5)
    theirs.weight.copy_(torch.randn(V))
    out, gate = torch.randn(5, H, V), torch.randn(5, H * V)
    want = theirs(out, gate.view(5, H, V)).flatten(1)
    torch.testing.assert_close(kda.gated_norm(out, theirs.weight, 1e-5, gate), want)


@pytest.mark.skipif(sys.platform != "linux", reason="fla-core is for Linux alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 9, 64, 128])
def test_both_forms_agree_with_the_naive_ones_of_fla(rows: int) -> None:
    from fla.ops.kda import naive

    q, k, v, g, beta, state = made(rows, seed=5, decay="gentle")
    g = g * 300  # at most -0.3 a row: fla's naive chunk form divides by decays
    batched = [x[None] for x in (q, k, v, g, beta)]
    want, final = naive.naive_recurrent_kda(*batched, scale=1.0, initial_state=state[None], output_final_state=True)
    for got, last in (kda.recurrent(q, k, v, g, beta, state), kda.chunked(q, k, v, g, beta, state)):
        torch.testing.assert_close(got, want[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(last[-1] if last.dim() == 4 else last, final[0], rtol=1e-5, atol=1e-5)
    if rows % 64 == 0:
        chunk, final = naive.naive_chunk_kda(*batched, scale=1.0, initial_state=state[None], output_final_state=True)
        got, last = kda.chunked(q, k, v, g, beta, state)
        torch.testing.assert_close(got, chunk[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(last, final[0], rtol=1e-4, atol=1e-4)


class Layer:
    """One layer's caches and a pass over them, as the back end makes it; every buffer of the staging starts as NaN."""

    def __init__(self, width: int, dtype: torch.dtype, seed: int = 6) -> None:
        torch.manual_seed(seed)
        channels = H * (2 * K + V)
        self.taps, self.rate, self.dt_bias = torch.randn(channels, TAPS), torch.rand(H), torch.randn(H * K)
        self.state, self.window = torch.randn(H, K, V), torch.randn(TAPS - 1, channels).to(dtype)
        self.staged_states = torch.empty(width, H, K, V)
        self.staged_inputs = torch.empty(width + TAPS - 1, channels, dtype=dtype)
        self.poison()

    def poison(self) -> None:
        self.staged_states.fill_(float("nan"))
        self.staged_inputs.fill_(float("nan"))

    def verify(self, rows: torch.Tensor, f: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat((self.window, rows.to(self.window.dtype)))
        q, k, v = kda.conv_silu(inputs, self.taps).split((H * K, H * K, H * V), dim=1)
        q, k = (kda.l2_normalize(x.view(-1, H, K)) for x in (q, k))
        g = kda.log_decay(f, self.rate, self.dt_bias, "bounded", -5.0)
        form = kda.recurrent if len(rows) <= len(self.staged_states) else kda.chunked
        out, states = form(q, k, v.view(-1, H, V), g, sigmoid(b), self.state)
        kda.stage(self.staged_states, self.staged_inputs, states if states.dim() == 4 else states[None], inputs)
        return out

    def commit(self, count: int, on_device: bool) -> None:
        counted = torch.tensor([count], dtype=torch.int32) if on_device else count
        kda.commit(self.state, self.window, self.staged_states, self.staged_inputs, counted)


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_committing_n_of_w_rows_equals_n_single_steps(dtype: torch.dtype, on_device: bool) -> None:
    width = 5
    torch.manual_seed(8)
    rows, f, b = torch.randn(width, H * (2 * K + V)), torch.randn(width, H * K), torch.randn(width, H)
    for count in range(width + 1):
        at_once, single = Layer(width, dtype), Layer(width, dtype)
        whole = at_once.verify(rows, f, b)
        assert torch.equal(at_once.state, single.state) and torch.equal(at_once.window, single.window)  # only read
        for r in range(count):
            single.poison()
            one = single.verify(rows[r : r + 1], f[r : r + 1], b[r : r + 1])
            assert torch.equal(one[0], whole[r])
            single.commit(1, on_device)
        at_once.commit(count, on_device)
        assert torch.equal(at_once.state, single.state), count
        assert torch.equal(at_once.window, single.window), count
        assert torch.isfinite(at_once.state).all() and torch.isfinite(at_once.window).all()
        # And what follows is the same from either.
        assert torch.equal(at_once.verify(rows, f, b), single.verify(rows, f, b))


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("drafted", [1, 2, 4])
def test_rows_that_were_not_computed_stay_out(drafted: int, on_device: bool) -> None:
    """Fewer rows than the staging holds: the rest of it is NaN and must not reach state or window."""
    layer = Layer(6, torch.float32)
    torch.manual_seed(9)
    layer.verify(torch.randn(drafted, H * (2 * K + V)), torch.randn(drafted, H * K), torch.randn(drafted, H))
    want = layer.staged_states[drafted - 1].clone()
    layer.commit(drafted, on_device)
    assert torch.equal(layer.state, want) and torch.isfinite(layer.window).all()


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [6, 7, 40, 70])
def test_a_pass_of_more_than_w_rows_is_committed_whole(rows: int, dtype: torch.dtype, on_device: bool) -> None:
    width = 5
    torch.manual_seed(10)
    x, f, b = torch.randn(rows, H * (2 * K + V)), torch.randn(rows, H * K), torch.randn(rows, H)
    whole, single = Layer(width, dtype), Layer(width, dtype)
    state, window = whole.state.clone(), whole.window.clone()
    out = whole.verify(x, f, b)
    whole.commit(0, on_device)
    assert torch.equal(whole.state, state) and torch.equal(whole.window, window)
    whole.commit(rows, on_device)  # more than W: all of them
    for r in range(rows):
        one = single.verify(x[r : r + 1], f[r : r + 1], b[r : r + 1])
        single.commit(1, on_device)
        torch.testing.assert_close(out[r], one[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole.state, single.state, rtol=1e-4, atol=1e-4)
    assert torch.equal(whole.window, single.window)


def test_fla_is_looked_for_without_being_imported() -> None:
    program = (
        "import sys; from lingchat.kernels import kda; before = set(sys.modules); found = kda.fla_available(); "
        "print(found, sorted(name for name in set(sys.modules) - before if name.startswith(('fla', 'triton'))))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert answer.split() in (["True", "[]"], ["False", "[]"])

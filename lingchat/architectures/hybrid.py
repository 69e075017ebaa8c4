"""`HybridConfig`: what a model of the Ling-3.0 and Kimi-Linear kind is: KDA and MLA layers, dense and MoE blocks.

One vocabulary for `BailingMoeV3ForCausalLM` and `KimiLinearForCausalLM`, from GGUF and Hugging Face files. Knows no
files. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lingchat.architectures.states import LatentRows, LayerState, Recurrent
from lingchat.errors import ModelFileError

LayerKind = Literal["kda", "mla"]
Quantization = Literal["none", "fp8", "int4"]


@dataclass(frozen=True)
class KDAConfig:
    """Kimi Delta Attention. P = heads * head_dim.

    `gate`: log decay of a key channel is `lower_bound * sigmoid(exp(A_log) * (f + dt_bias))` when "bounded",
    `-exp(A_log) * softplus(f + dt_bias)` when "softplus". `rank`: f and the output gate come through a pair of
    projections of that rank; None when they are full.
    """

    heads: int
    head_dim: int  # of keys and of values
    taps: int  # width of the short convolutions
    gate: Literal["bounded", "softplus"]
    lower_bound: float  # -5 for "bounded"; 0 otherwise
    rank: int | None


@dataclass(frozen=True)
class MLAConfig:
    """Multi-head latent attention. Each query and key has `nope` plain dimensions and then `rope` shared ones.

    `rope_base` None: nothing is rotated, the `rope` dimensions take part as they are. `gated`: one sigmoid a head.
    """

    heads: int
    nope: int
    rope: int
    value: int
    kv_rank: int
    q_rank: int | None
    rope_base: float | None
    gated: bool
    scale: float  # of the scores: (nope + rope) ** -0.5, times YaRN's squared mscale where there is one
    rope_factors: tuple[float, ...] | None = None  # YaRN's divisors of the frequencies, one a pair


@dataclass(frozen=True)
class MoEConfig:
    """Sigmoid-routed experts and one shared expert, added unscaled."""

    experts: int
    chosen: int
    groups: int
    chosen_groups: int
    width: int  # of one routed expert
    shared_width: int
    scale: float
    renormalize: bool


@dataclass(frozen=True)
class HybridConfig:
    architecture: str  # Hugging Face's class name
    hidden: int
    vocab: int  # rows of the embedding; the tokenizer may know fewer
    context: int
    norm_eps: float
    tied: bool
    kinds: tuple[LayerKind, ...]  # of every layer of the main model
    dense_layers: int  # the first so many have a dense feed-forward block, the others experts
    ffn: int  # of the dense blocks
    kda: KDAConfig
    mla: MLAConfig
    moe: MoEConfig
    routed_limits: tuple[float, ...]  # SwiGLU limit of each layer's routed experts; 0: none
    shared_limits: tuple[float, ...]
    mtp_layers: int = 0  # 0 or 1: an MLA and MoE layer after the others that drafts the token after next
    # How the file stores them. GGUF: experts of a layer as one tensor, the latent's up-projections as two.
    stacked_experts: bool = False
    split_kv_b: bool = False
    # Of a safetensors checkpoint: "fp8" has e4m3 matrices, a scale a 128 x 128 block; "int4" has experts in groups of 32.
    quantization: Quantization = "none"

    def __post_init__(self) -> None:
        moe = self.moe
        wrong = [
            (not self.kinds, "it has no layers"),
            (len(self.routed_limits) != len(self.kinds), "routed limits and layers differ in number"),
            (len(self.shared_limits) != len(self.kinds), "shared limits and layers differ in number"),
            (self.mla.rope % 2 != 0, f"the rotated width {self.mla.rope} is odd"),
            (moe.experts % moe.groups != 0, f"{moe.experts} experts do not divide into {moe.groups} groups"),
            (moe.chosen_groups > moe.groups, f"{moe.chosen_groups} of {moe.groups} groups cannot be chosen"),
            (
                moe.chosen > moe.experts // moe.groups * moe.chosen_groups,
                f"{moe.chosen} experts cannot be chosen from {moe.chosen_groups} groups",
            ),
            (moe.groups > 1 and moe.experts // moe.groups < 2, "a group needs two experts to be scored"),
        ]
        for is_wrong, text in wrong:
            if is_wrong:
                raise ModelFileError(f"The model's configuration contradicts itself: {text}. Fetch the model again.")

    @property
    def layers(self) -> int:
        return len(self.kinds)

    def is_moe(self, layer: int) -> bool:
        return layer >= self.dense_layers

    def layer_states(self) -> tuple[LayerState, ...]:
        """What each layer of the main model keeps of a conversation."""
        kda, latent = self.kda, self.latent_state()
        recurrent = Recurrent(kda.heads, kda.head_dim, kda.head_dim, kda.taps)
        return tuple(recurrent if kind == "kda" else latent for kind in self.kinds)

    def latent_state(self) -> LatentRows:
        return LatentRows(self.mla.kv_rank + self.mla.rope)

"""The blocks of the Ling family: KDA and MLA mixers, dense and routed feed-forward. Each loads itself and runs itself.

A mixer turns the residual's rows into a waiting partial sum, and so does a feed-forward block; the layer's norms belong
to the block that reads through them. Knows operations, no tensors.
"""

from __future__ import annotations

import msgspec

from lingchat.architectures.hybrid import HybridConfig
from lingchat.runtime.models.decoder import Tensors
from lingchat.runtime.ops.protocol import (
    Experts,
    KDACache,
    KDAShape,
    KDAWeights,
    LatentCache,
    LatentShape,
    LatentWeights,
    Matrix,
    Ops,
    RawTensor,
    Residual,
    Rotation,
    RouteShape,
    Rows,
    Vector,
)


def rotation(config: HybridConfig) -> Rotation | None:
    """Adjacent pairs of the shared dimensions; None where nothing is rotated."""
    mla = config.mla
    if mla.rope_base is None:
        return None
    return Rotation(mla.rope, mla.rope_base, adjacent=True, factors=mla.rope_factors)


class KDABlock(msgspec.Struct, frozen=True):
    """Kimi Delta Attention: one in-projection of queries, keys, values, decay, gate and write strength."""

    norm: Vector
    eps: float
    projections: Matrix
    weights: KDAWeights
    shape: KDAShape
    out: Matrix

    @classmethod
    def load(cls, raw: Tensors, ops: Ops, config: HybridConfig) -> KDABlock:
        kda = config.kda
        paired = kda.rank is not None
        names = ["q", "k", "v", *(("f_a", "g_a") if paired else ("f", "g")), "b"]
        return cls(
            norm=ops.vector(raw("input_layernorm.weight")),
            eps=config.norm_eps,
            projections=ops.matrix([raw(f"kda.{name}_proj.weight") for name in names]),
            weights=KDAWeights(
                conv=ops.convolution([raw(f"kda.{part}_conv.weight") for part in "qkv"]),
                rate=ops.vector(raw("kda.A")),
                dt_bias=ops.vector(raw("kda.dt_bias")),
                norm=ops.vector(raw("kda.o_norm.weight")),
                f_up=ops.matrix([raw("kda.f_b_proj.weight")]) if paired else None,
                g_up=ops.matrix([raw("kda.g_b_proj.weight")]) if paired else None,
            ),
            shape=KDAShape(
                heads=kda.heads,
                head_dim=kda.head_dim,
                taps=kda.taps,
                gate=kda.gate,
                lower_bound=kda.lower_bound,
                rank=kda.rank,
                eps=config.norm_eps,
            ),
            out=ops.matrix([raw("kda.o_proj.weight")]),
        )

    def run(self, ops: Ops, x: Residual, cache: KDACache, rows: Rows) -> None:
        projected = ops.norm_project(x, self.norm, self.eps, self.projections)
        ops.project_out(x, ops.kda(projected, self.weights, self.shape, cache), self.out)


class LatentBlock(msgspec.Struct, frozen=True):
    """Multi-head latent attention: queries (or their compressed form), latent, shared key, gate in one projection."""

    norm: Vector
    eps: float
    projections: Matrix
    weights: LatentWeights
    shape: LatentShape
    out: Matrix

    @classmethod
    def load(cls, raw: Tensors, ops: Ops, config: HybridConfig) -> LatentBlock:
        mla = config.mla
        shape = LatentShape(
            heads=mla.heads,
            nope=mla.nope,
            rope=mla.rope,
            value=mla.value,
            rank=mla.kv_rank,
            q_rank=mla.q_rank,
            rotation=rotation(config),
            eps=config.norm_eps,
            scale=mla.scale,
            gated=mla.gated,
        )
        compressed = mla.q_rank is not None
        names = ["q_a" if compressed else "q", "kv_a", *(["g"] if mla.gated else [])]
        up = ("k_b", "v_b") if config.split_kv_b else ("kv_b",)
        return cls(
            norm=ops.vector(raw("input_layernorm.weight")),
            eps=config.norm_eps,
            projections=ops.matrix([raw(f"mla.{name}_proj.weight") for name in names]),
            weights=LatentWeights(
                kv_norm=ops.vector(raw("mla.kv_a_norm.weight")),
                up=ops.latent_up([raw(f"mla.{name}_proj.weight") for name in up], shape),
                q_norm=ops.vector(raw("mla.q_a_norm.weight")) if compressed else None,
                q_up=ops.matrix([raw("mla.q_b_proj.weight")]) if compressed else None,
            ),
            shape=shape,
            out=ops.matrix([raw("mla.o_proj.weight")]),
        )

    def run(self, ops: Ops, x: Residual, cache: LatentCache, rows: Rows) -> None:
        projected = ops.norm_project(x, self.norm, self.eps, self.projections)
        ops.project_out(x, ops.latent_attention(projected, self.weights, self.shape, cache, rows), self.out)


class DenseBlock(msgspec.Struct, frozen=True):
    """SwiGLU feed-forward."""

    norm: Vector
    eps: float
    gate_up: Matrix
    down: Matrix

    @classmethod
    def load(cls, raw: Tensors, ops: Ops, config: HybridConfig) -> DenseBlock:
        return cls(
            norm=ops.vector(raw("post_attention_layernorm.weight")),
            eps=config.norm_eps,
            gate_up=ops.matrix([raw("mlp.gate_proj.weight"), raw("mlp.up_proj.weight")]),
            down=ops.matrix([raw("mlp.down_proj.weight")]),
        )

    def run(self, ops: Ops, x: Residual) -> None:
        ops.ffn_down(x, ops.ffn_up(x, self.norm, self.eps, self.gate_up), self.down)


class ExpertsBlock(msgspec.Struct, frozen=True):
    """Routed experts and a shared one, each kind with its own SwiGLU limit."""

    norm: Vector
    eps: float
    router: Matrix
    bias: Vector
    shape: RouteShape
    experts: Experts
    shared_up: Matrix
    shared_down: Matrix
    limit: float
    shared_limit: float

    @classmethod
    def load(
        cls, raw: Tensors, ops: Ops, config: HybridConfig, limit: float = 0.0, shared_limit: float = 0.0
    ) -> ExpertsBlock:
        moe = config.moe

        def experts(part: str) -> list[RawTensor]:
            if config.stacked_experts:
                return [raw(f"moe.experts.{part}_proj.weight")]
            return [raw(f"moe.experts.{expert}.{part}_proj.weight") for expert in range(moe.experts)]

        return cls(
            norm=ops.vector(raw("post_attention_layernorm.weight")),
            eps=config.norm_eps,
            router=ops.router(raw("moe.router.weight")),
            bias=ops.vector(raw("moe.router_bias")),
            shape=RouteShape(moe.experts, moe.chosen, moe.groups, moe.chosen_groups, moe.scale, moe.renormalize),
            experts=ops.experts(experts("gate"), experts("up"), experts("down")),
            shared_up=ops.matrix([raw("moe.shared.gate_proj.weight"), raw("moe.shared.up_proj.weight")]),
            shared_down=ops.matrix([raw("moe.shared.down_proj.weight")]),
            limit=limit,
            shared_limit=shared_limit,
        )

    def run(self, ops: Ops, x: Residual) -> None:
        route = ops.route(x, self.norm, self.eps, self.router, self.bias, self.shape)
        hidden = ops.experts_up(route, self.experts, self.shared_up, self.limit, self.shared_limit)
        ops.experts_down(x, route, hidden, self.experts, self.shared_down)

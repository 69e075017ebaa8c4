"""Latent attention with rotation, and groups of experts, as DeepSeek-V3 has them: a model of these blocks alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import transformers
from hf_judge import model_logits
from ling_cases import ids_of
from ling_reference import route as reference_route
from make_ling import ling_config, random_tensors

from lingchat.architectures.hybrid import HybridConfig
from lingchat.runtime.models.hybrid import HybridModel
from lingchat.runtime.ops.protocol import BufferSpec, RouteShape
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.state import State, StateSpec

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = ids_of(40, 9)


@dataclass(frozen=True)
class Raw:
    name: str
    shape: tuple[int, ...]
    data: memoryview
    type: str = "F32"
    scales: None = None


@dataclass(frozen=True)
class InMemory:
    """Weights without a file."""

    config: HybridConfig
    values: dict[str, torch.Tensor]

    def tensor(self, name: str) -> Raw:
        value = self.values[name].contiguous()
        return Raw(name, tuple(value.shape), memoryview(value.numpy().reshape(-1).view("uint8")))


def deepseek(config: HybridConfig, values: dict[str, torch.Tensor]) -> Any:
    mla, moe = config.mla, config.moe
    model = transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            moe_intermediate_size=moe.width,
            num_hidden_layers=config.layers,
            num_attention_heads=mla.heads,
            num_key_value_heads=mla.heads,
            n_shared_experts=1,
            n_routed_experts=moe.experts,
            routed_scaling_factor=moe.scale,
            kv_lora_rank=mla.kv_rank,
            q_lora_rank=mla.q_rank,
            qk_rope_head_dim=mla.rope,
            qk_nope_head_dim=mla.nope,
            v_head_dim=mla.value,
            n_group=moe.groups,
            topk_group=moe.chosen_groups,
            num_experts_per_tok=moe.chosen,
            first_k_dense_replace=config.dense_layers,
            norm_topk_prob=moe.renormalize,
            rope_interleave=True,
            rope_parameters={"rope_type": "default", "rope_theta": mla.rope_base},
            rms_norm_eps=config.norm_eps,
            max_position_embeddings=config.context,
        )
    )
    state = {}
    for name, value in values.items():
        name = f"model.{name}" if name != "lm_head.weight" else name
        for ours, theirs in (
            (".mla.kv_a_proj.", ".self_attn.kv_a_proj_with_mqa."),
            (".mla.kv_a_norm.", ".self_attn.kv_a_layernorm."),
            (".mla.q_a_norm.", ".self_attn.q_a_layernorm."),
            (".mla.", ".self_attn."),
            (".moe.router.", ".mlp.gate."),
            (".moe.router_bias", ".mlp.gate.e_score_correction_bias"),
            (".moe.shared.", ".mlp.shared_experts."),
            (".moe.experts.down_proj.weight", ".mlp.experts.down_proj"),
            (".moe.experts.up_proj.weight", ".mlp.experts.up_proj"),
            (".moe.experts.gate_proj.weight", ".mlp.experts.gate_proj"),
        ):
            name = name.replace(ours, theirs)
        state[name] = value
    for name in [name for name in state if name.endswith(".experts.gate_proj")]:
        up = state.pop(name.replace("gate_proj", "up_proj"))
        state[name.replace("gate_proj", "gate_up_proj")] = torch.cat([state.pop(name), up], 1)
    model.load_state_dict(state)
    return model.eval()


@pytest.mark.parametrize("groups", [(4, 2), (8, 3), (1, 1)])
@pytest.mark.parametrize("q_rank", [None, 32])
def test_latent_attention_and_groups_are_those_of_deepseek(q_rank: int | None, groups: tuple[int, int]) -> None:
    ling = ling_config(q_rank=q_rank, layers=3)
    config = replace(
        ling,
        kinds=("mla",) * 3,
        mla=replace(ling.mla, gated=False),
        moe=replace(ling.moe, groups=groups[0], chosen_groups=groups[1]),
        stacked_experts=True,
    )
    values = random_tensors(config, 40)
    want = torch.from_numpy(model_logits(deepseek(config, values), IDS)).float()
    ops = TorchOps("fp32")
    with torch.inference_mode():
        model = HybridModel(InMemory(config, values), ops)
        for width in (1, 8, 40):
            state = State(model.state_spec(64), StateSpec((), 64), ops, 4, width=8)
            logits = []
            for start in range(0, len(IDS), width):
                part = IDS[start : start + width]
                logits.append(model.verify(torch.tensor(part, dtype=torch.int32), len(part), state)[0])
                count = ops.allocate(BufferSpec("count", (1,), "i32"))
                ops.fill(count, [len(part)])
                state.commit(count)
            torch.testing.assert_close(torch.cat(logits), want, rtol=1e-4, atol=1e-4)


def test_the_gate_keeps_fp32_weights_unless_told_otherwise() -> None:
    """One flipped expert changes the text: with bf16 matrices the experts are those of fp32 scores."""
    config = ling_config(layers=3, experts=64)
    values = random_tensors(config, 41)
    rows = torch.randn(256, config.hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).float()
    raw = InMemory(config, values | {"rows": rows, "one": torch.ones(config.hidden)}).tensor
    moe = config.moe
    shape = RouteShape(moe.experts, moe.chosen, moe.groups, moe.chosen_groups, moe.scale, moe.renormalize)

    def chosen(dtype: str, **switch: bool) -> list[list[int]]:
        ops = TorchOps(dtype, **switch)
        with torch.inference_mode():
            ids, length = torch.arange(256, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
            x = ops.embed(ops.matrix([raw("rows")]), ops.rows(ids, 256, length, None))
            router, bias = ops.router(raw("layers.2.moe.router.weight")), ops.vector(raw("layers.2.moe.router_bias"))
            route = ops.route(x, ops.vector(raw("one")), config.norm_eps, router, bias, shape)
        return [sorted(row) for row in route.ids.tolist()]

    normed = rows.double() / (rows.double().square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    logits = (normed @ values["layers.2.moe.router.weight"].double().T).numpy()
    bias = values["layers.2.moe.router_bias"].double().numpy()
    want = [sorted(reference_route(row, bias, moe)[0]) for row in logits]
    assert chosen("fp32") == chosen("bf16") == want
    assert chosen("bf16", fp32_gate=False) != want

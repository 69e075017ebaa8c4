"""How a safetensors checkpoint is quantised, from the `quantization_config` of its config.json.

Two layouts are read, both published for Ling-3.0: "fp8" (e4m3, one scale a block of 128 x 128) and compressed-tensors
"pack-quantized" with symmetric integers of 4 bits in groups of 32. Which tensors are quantised, the file itself says.
Sources: transformers' FineGrainedFP8Config, the compressed-tensors package's `QuantizationArgs`.
"""

from __future__ import annotations

from lingchat.architectures.hybrid import Quantization
from lingchat.architectures.keys import Keys

# Of the fp8 layout: which modules are left out, and how scales of activations would be rounded (none are quantised).
_FP8_HARMLESS = ("modules_to_not_convert", "ignored_layers", "scale_fmt", "dequantize")
# Of compressed-tensors: who made the file and how it was searched for, and which modules are left out.
_PACKED_HARMLESS = ("ignore", "quantization_status", "global_compression_ratio", "version")
_GROUP_HARMLESS = ("targets", "observer", "observer_kwargs")


def read_quantization(keys: Keys) -> Quantization:
    """The layout; "none" without the key. Raises UnsupportedModel, naming what is not supported."""
    table = keys.table("quantization_config")
    if table is None:
        return "none"
    method = table.get("quant_method")
    if method == "fp8":
        _fp8(table)
        return "fp8"
    if method != "compressed-tensors":
        table.refuse("quant_method", method, "only 'fp8' and 'compressed-tensors' are supported")
    _packed(table)
    return "int4"


def _fp8(table: Keys) -> None:
    table.only("fmt", "e4m3")
    table.only("activation_scheme", "dynamic")
    table.must("weight_block_size", [128, 128])
    table.ignore(_FP8_HARMLESS)
    table.refuse_rest()


def _packed(table: Keys) -> None:
    table.must("format", "pack-quantized")
    table.only("kv_cache_scheme")
    table.only("sparsity_config", {})
    table.only("transform_config", {})
    table.ignore(_PACKED_HARMLESS)
    groups = table.table("config_groups")
    if groups is None or not groups.values:
        table.wrong("config_groups", None, "a table of at least one group")
    for name in [key.removeprefix(groups.prefix) for key in groups.values]:
        group = groups.table(name)
        weights = None if group is None else group.table("weights")
        if group is None or weights is None:
            groups.wrong(name, groups.get(name), "a table with `weights`")
        group.only("input_activations")
        group.only("output_activations")
        group.only("format", "pack-quantized")
        group.ignore(_GROUP_HARMLESS)
        weights.must("num_bits", 4)
        weights.must("type", "int")
        weights.must("symmetric", True)
        weights.must("strategy", "group")
        weights.must("group_size", 32)
        for key in ("actorder", "block_structure", "zp_dtype", "scale_dtype"):
            weights.only(key)
        weights.only("dynamic", False)
        weights.ignore(_GROUP_HARMLESS)
        weights.refuse_rest()
        group.refuse_rest()
    table.refuse_rest()

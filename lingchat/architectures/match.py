"""Which tensors of a file are a model's: every one found, or named as missing, misshapen, unknown or of a bad type.

Reads headers only, so a refusal comes before any memory is taken. Two layouts keep a weight's scales beside it and are
found here as one tensor: `X.weight` with `X.weight_scale_inv` (fp8), and `X.weight_packed` with `X.weight_scale` and
`X.weight_shape` in place of `X.weight` (compressed-tensors' packed int4, of routed experts). No torch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lingchat.architectures.dense import DenseConfig
from lingchat.architectures.dense_names import expected_shapes, gguf_name, hf_name
from lingchat.architectures.hybrid import HybridConfig
from lingchat.architectures.hybrid_files import Rate, Stored, folder_tensors, gguf_tensors
from lingchat.architectures.hybrid_names import is_routed_expert
from lingchat.architectures.name_lists import folded
from lingchat.catalog.headers import TensorInfo
from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.kernels.blocks import DECODABLE, FP8_BLOCK, INT4_GROUP

# Up to this many names are listed one by one; experts alone can be 60,000.
_LISTED = 50
_SCALE_TYPES = {"F8_E4M3": ("F32", "BF16"), "I4": ("F32", "BF16", "F16")}
_FLOATS = ("F32", "F16", "BF16")


class Held(msgspec.Struct, frozen=True):
    """Where a canonical tensor lies. `info` has the type that decodes it and the canonical shape; `scales` too."""

    info: TensorInfo
    scales: TensorInfo | None = None
    rate: Rate | None = None

    @property
    def nbytes(self) -> int:
        return self.info.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def parameters(self) -> int:
        return math.prod(self.info.shape)


@dataclass
class _Findings:
    """What is wrong with a file, in its own names. `used` are those that belong to the model."""

    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    undecodable: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


def stored_tensors(config: DenseConfig | HybridConfig, gguf: bool) -> dict[str, Stored]:
    """Every tensor of the model by canonical name, as a GGUF file or a safetensors folder has it."""
    if isinstance(config, HybridConfig):
        return gguf_tensors(config) if gguf else folder_tensors(config)
    name_in = gguf_name if gguf else hf_name
    return {name: Stored((name_in(name),), (shape,)) for name, shape in expected_shapes(config).items()}


def match(
    path: Path,
    config: DenseConfig | HybridConfig,
    stored: Mapping[str, Stored],
    tensors: Mapping[str, TensorInfo],
    read: Callable[[TensorInfo], memoryview],
) -> dict[str, Held]:
    """`tensors` by canonical name, when they are exactly what `config` needs, in the order of `stored`.

    `read` gives a tensor's bytes; only those of `weight_shape` are asked for. Raises ModelFileError when a tensor is
    missing or misshapen, UnsupportedModel when one is unknown or of a type that nothing decodes. All of them are named.
    """
    layout = config.quantization
    found = _Findings()
    held: dict[str, Held] = {}
    for canonical, as_stored in stored.items():
        # A layout may leave some of the matrices that it is for unquantised.
        packed = f"{as_stored.names[0].removesuffix('weight')}weight_packed"
        if layout == "int4" and is_routed_expert(canonical) and packed in tensors:
            one = _packed(as_stored, tensors, read, found)
        else:
            one = _plain(as_stored, tensors, found, fp8=layout == "fp8")
        if one is not None:
            held[canonical] = one
    extra = sorted(tensors.keys() - found.used)
    _refuse(path, config.architecture, found, extra)
    return held


def _plain(stored: Stored, tensors: Mapping[str, TensorInfo], found: _Findings, *, fp8: bool) -> Held | None:
    there = [name for name in stored.names if name in tensors]
    if not there:
        found.missing.append(" or ".join(stored.names))
        return None
    name = there[0]  # a second one stays unused, and is unknown
    info, shape = tensors[name], stored.shapes[0]
    found.used.add(name)
    if not _has_shape(info, stored.shapes, found):
        return None
    info = info._replace(shape=shape)
    if fp8 and info.type == "F8_E4M3" and len(shape) == 2:
        beside = (-(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK))
        scales = _companion(f"{name}_scale_inv", (beside,), _SCALE_TYPES["F8_E4M3"], tensors, found)
        return None if scales is None else Held(info, scales)
    if info.type not in (_FLOATS if stored.rate else DECODABLE):
        found.undecodable.setdefault(info.type, []).append(name)
        return None
    return Held(info, rate=stored.rate)


def _packed(
    stored: Stored, tensors: Mapping[str, TensorInfo], read: Callable[[TensorInfo], memoryview], found: _Findings
) -> Held | None:
    """The three tensors of a packed weight as one of type I4."""
    (name,), ((rows, columns), *_) = stored.names, stored.shapes
    stem = name.removesuffix("weight")
    packed = _companion(f"{stem}weight_packed", ((rows, columns // 8),), ("I32",), tensors, found)
    scales = _companion(f"{stem}weight_scale", ((rows, columns // INT4_GROUP),), _SCALE_TYPES["I4"], tensors, found)
    said = _companion(f"{stem}weight_shape", ((2,),), ("I64", "I32"), tensors, found)
    if said is not None:
        values = struct.unpack("<2q" if said.type == "I64" else "<2i", read(said))
        if values != (rows, columns):
            found.wrong.append(f"{said.name} says {values}, not {(rows, columns)}")
    if columns % INT4_GROUP:
        found.wrong.append(f"{stem}weight_packed has rows of {columns} values, no whole groups of {INT4_GROUP}")
    if packed is None or scales is None:
        return None
    return Held(packed._replace(type="I4", shape=(rows, columns)), scales)


def _companion(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    types: tuple[str, ...],
    tensors: Mapping[str, TensorInfo],
    found: _Findings,
) -> TensorInfo | None:
    info = tensors.get(name)
    if info is None:
        found.missing.append(name)
        return None
    found.used.add(name)
    if not _has_shape(info, shapes, found):
        return None
    if info.type not in types:
        found.undecodable.setdefault(info.type, []).append(name)
        return None
    return info


def _has_shape(info: TensorInfo, shapes: tuple[tuple[int, ...], ...], found: _Findings) -> bool:
    if info.shape in shapes:
        return True
    found.wrong.append(f"{info.name} is {info.shape}, not {' or '.join(str(shape) for shape in shapes)}")
    return False


def _refuse(path: Path, architecture: str, found: _Findings, extra: list[str]) -> None:
    """Raises what the findings call for, if anything."""
    what = f"{path}: the tensors do not fit {architecture}"
    if found.missing or found.wrong:
        parts = [
            _listed("missing", found.missing),
            _listed("of another shape", found.wrong),
            _listed("unknown", extra),
        ]
        raise ModelFileError(f"{what}. {' '.join(part for part in parts if part)} Fetch the model again.")
    if extra:
        raise UnsupportedModel(f"{what}. {_listed('unknown', extra)} It computes something else; use another model.")
    if found.undecodable:
        types = "; ".join(
            f"{kind} ({len(of)} tensors, {of[0]} for one)" for kind, of in sorted(found.undecodable.items())
        )
        raise UnsupportedModel(f"{path}: weight types that cannot be read: {types}. Supported: {', '.join(DECODABLE)}.")


def _listed(what: str, names: Iterable[str]) -> str:
    """All names, of very many those that differ in numbers only as one entry."""
    every = list(names)
    text = ", ".join(folded(every) if len(every) > _LISTED else every)
    return f"{what.capitalize()}: {text}." if text else ""

"""Host memory while a model is packed: pages of the mapped files go when they have been read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from make_ling import ling_config, ling_raw, write_ling_hf

from lingchat.architectures.hybrid_files import folder_tensors
from lingchat.runtime.weights.load import open_weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are counted by Linux's /proc")

SHARD = 32 << 20  # bytes, about
ALLOWANCE = 24 << 20  # what may come beside the model and one shard: a chunk's intermediates, the allocator

# Prints how far each phase raised the memory held at once (VmHWM), and what the last one left held.
PROGRAM = """
import sys, torch
from pathlib import Path
from lingchat.kernels import quant
from lingchat.kernels.staging import Staging
from lingchat.runtime.weights.load import open_weights

def held(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))

def reset():
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    return held("VmRSS")

torch.set_num_threads(1)
weights = open_weights(Path(sys.argv[1]))
quant.to_torch(weights.tensor("norm.weight"))
start = reset()
device = Staging(torch.device("cpu"))
for name in weights.names():
    for _ in device.pieces(quant.raw_bytes(weights.tensor(name).data), 64):
        pass
print(held("VmHWM") - start)
start = reset()
packed = [quant.to_torch(weights.tensor(name), torch.bfloat16) for name in weights.names()]
print(held("VmHWM") - start)
del packed
start = reset()
in_place = [quant.raw_bytes(weights.tensor(name).data) for name in weights.names() if not name.endswith(".A")]
print(held("VmRSS") - start)
del in_place
print(held("VmRSS") - start)
"""

# Prints, for each precision, the bytes of the packed model and how far building it raised the memory held at once.
BUILDING = """
import sys, torch
from pathlib import Path
from lingchat.kernels.cpu import library
from lingchat.runtime.models.registry import build
from lingchat.runtime.ops.native_ops import NativeOps
from lingchat.runtime.ops.torch_ops import TorchOps
from lingchat.runtime.weights.load import open_weights

def held(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))

torch.set_num_threads(1)
for dtype in ("bf16", "int8", "native"):
    weights = open_weights(Path(sys.argv[1]))
    ops = NativeOps(library.find(), 2) if dtype == "native" else TorchOps(dtype)
    Path("/proc/self/clear_refs").write_text("5")
    start = held("VmRSS")
    with ops.session():
        model = build(weights, ops)
    print(ops.weight_bytes(), held("VmHWM") - start)
    del model, weights, ops
"""


# Prints how far loading a model raised the memory held at once, all that belongs to it included.
LOADING = """
import sys
from pathlib import Path
import lingchat.runtime.worker
from lingchat.runtime.engine import Runtime
from lingchat.runtime.loading import Loading

def held(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))

start = held("VmHWM")
runtime = Runtime(Path(sys.argv[1]), Loading(threads=2))
assert runtime.info.backend.startswith("native"), runtime.info.backend
print(held("VmHWM") - start)
runtime.formats.close()
"""


def run(program: str, folder: Path, **environment: str) -> list[int]:
    """The numbers that a process of its own prints."""
    command = [sys.executable, "-c", program, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert result.returncode == 0, result.stderr
    return [int(word) for word in result.stdout.split()]


# glibc would raise the size from which freed memory goes back at once.
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


def write_shards(folder: Path) -> tuple[int, int]:
    """A bf16 model of zeros in sparse files, which take no room on the disk: bytes of all, and of the largest shard."""
    config = ling_config(layers=5, experts=64, hidden=1024)
    config = replace(config, moe=replace(config.moe, width=128))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ling_raw(config)))
    shards: list[dict[str, list[int]]] = [{}]
    size = 0
    for stored in folder_tensors(config).values():
        if size > SHARD:
            shards.append({})
            size = 0
        shards[-1][stored.names[0]] = list(stored.shapes[0])
        size += 2 * _count(stored.shapes[0])
    index, sizes = {}, []
    for i, shapes in enumerate(shards):
        path, at, header = folder / f"model-{i + 1:05}-of-{len(shards):05}.safetensors", 0, {}
        for name, shape in shapes.items():
            nbytes = 2 * _count(tuple(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + at)
        index |= dict.fromkeys(shapes, path.name)
        sizes.append(at)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return sum(sizes), max(sizes)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_packing_holds_the_model_and_one_shard_at_most(tmp_path: Path) -> None:
    total, largest = write_shards(tmp_path / "m")
    to_device, packed, in_place, left = run(PROGRAM, tmp_path / "m", **AT_ONCE)
    assert total > 2 * (largest + ALLOWANCE)
    assert to_device < largest + ALLOWANCE
    assert packed < total + largest + ALLOWANCE
    assert in_place > 0.8 * total, "what is used where it lies stays, and would show if it were kept needlessly"
    assert left < ALLOWANCE


def test_building_a_model_holds_it_and_one_shard_at_most(tmp_path: Path) -> None:
    """The way of the engine: every block of the model packs its own tensors."""
    _, largest = write_shards(tmp_path / "m")
    bf16, bf16_peak, int8, int8_peak, native, native_peak = run(BUILDING, tmp_path / "m", **AT_ONCE)
    assert bf16 > 1.8 * native > 1.8 * int8 > 1.9 * (largest + ALLOWANCE)
    assert bf16_peak < bf16 + largest + ALLOWANCE
    assert int8_peak < int8 + largest + ALLOWANCE
    assert native_peak < native + largest + ALLOWANCE


def test_the_default_model_takes_little_more_than_its_file(home_with_model: Path, default_model: Path) -> None:
    """Packed weights, tokenizer, cache and workspace together, at their most: 1.3 times the file over an idle worker."""
    (peak,) = run(LOADING, default_model)
    assert peak <= 1.3 * default_model.stat().st_size


def test_bytes_stay_readable_after_their_pages_went(tmp_path: Path) -> None:
    weights = open_weights(write_ling_hf(tmp_path / "m").path)
    raw = weights.tensor("embed_tokens.weight")
    first = raw.data
    part, whole = first[64:128], bytes(first)
    del first
    assert bytes(part) == whole[64:128]
    assert bytes(raw.data) == whole

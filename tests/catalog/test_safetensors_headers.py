"""Headers of safetensors folders: what the safetensors package writes is read alike, and damage is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import write_tokenizer
from safetensors.numpy import save_file

from lingchat.catalog.headers import read_safetensors_folder
from lingchat.errors import ModelFileError, ModelNotFound, UnsupportedModel


def folder_with(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"architectures": ["X"]}')
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_a_safetensors_folder_reads_as_written(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, dtype=np.float16)}
    (tmp_path / "config.json").write_text('{"architectures": ["X"], "n": 1}')
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    header = read_safetensors_folder(tmp_path)
    assert header.config == {"architectures": ["X"], "n": 1}
    assert {n: (t.type, t.shape, t.nbytes) for n, t in header.tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("F16", (3,), 6),
    }
    data = header.parts[0].read_bytes()
    for name, info in header.tensors.items():
        assert data[info.offset : info.offset + info.nbytes] == tensors[name].tobytes()


def test_shards_with_their_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for i, name in enumerate("ab"):
        save_file({name: np.ones(i + 1, dtype=np.float32)}, tmp_path / f"model-{i}.safetensors")
    index = {"weight_map": {"a": "model-0.safetensors", "b": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    header = read_safetensors_folder(tmp_path)
    assert [(t.name, t.part, t.nbytes) for t in header.tensors.values()] == [("a", 0, 4), ("b", 1, 8)]

    def damaged(change: dict[str, Any], error: type[Exception], message: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index | change))
        with pytest.raises(error, match=message):
            read_safetensors_folder(tmp_path)

    damaged({"weight_map": {"a": "model-0.safetensors", "b": "gone.safetensors"}}, ModelNotFound, r"gone\.safetensors")
    damaged({"weight_map": {"a": "model-0.safetensors", "c": "model-1.safetensors"}}, ModelFileError, "differ in b, c")
    damaged({"weight_map": {"a": "../model-0.safetensors"}}, ModelFileError, r"\.\./model-0")
    damaged({"weight_map": {"a": 3}}, ModelFileError, "no plain file names: 3")
    damaged({"weight_map": {}}, ModelFileError, "weight_map")


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_SAFETENSORS: dict[str, tuple[tuple[Any, ...], str]] = {
    "cut header": (({"a": ONE}, b"", 1000), "cut off: its header would take 1000"),
    "huge header": ((b"{}", b"", 2**63), "header would take 9223372036854775808"),
    "no json": ((b"{nonsense", b""), "no valid JSON"),
    "deep json": ((b"[" * 200_000, b""), "no valid JSON"),
    "no object": ((b"[]", b""), "is no object"),
    "twice": ((b'{"a": 1, "a": 2}', b""), "key a comes twice"),
    "no entry": (({"a": 3}, b""), "tensor a has no dtype"),
    "no shape": (({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "tensor a has no dtype, shape"),
    "shape": (({"a": ONE | {"shape": [-2]}}, bytes(8)), r"tensor a has the shape \[-2\]"),
    "endless shape": (({"a": ONE | {"shape": [10**4000] * 1000}}, bytes(8)), "tensor a has the shape .{80} and"),
    "true shape": (({"a": ONE | {"shape": [True, 2]}}, bytes(8)), "tensor a has the shape"),
    "empty": (({"a": ONE | {"shape": [0], "data_offsets": [0, 0]}}, b""), "tensor a is empty"),
    "backwards": (({"a": ONE | {"data_offsets": [8, 0]}}, bytes(8)), r"data_offsets \[8, 0\]"),
    "size": (({"a": ONE | {"data_offsets": [0, 12]}}, bytes(12)), "tensor a holds 12 bytes, its shape needs 8"),
    "cut": (({"a": ONE}, bytes(7)), "tensor a ends at byte"),
    "overlap": (({"a": ONE, "b": ONE | {"data_offsets": [4, 12]}}, bytes(12)), "tensors a and b overlap"),
    "more data": (({"a": ONE}, bytes(20)), "12 bytes behind the last tensor"),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_safetensors_damage_is_named_with_the_file(name: str, tmp_path: Path) -> None:
    arguments, message = BAD_SAFETENSORS[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read_safetensors_folder(folder_with(tmp_path / "m", *arguments))
    assert str(tmp_path / "m" / "model.safetensors") in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_unknown_dtype_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="tensor a has the dtype 'F4'"):
        read_safetensors_folder(folder_with(tmp_path / "m", {"a": ONE | {"dtype": "F4"}}, bytes(8)))


def test_what_is_missing_in_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such folder"):
        read_safetensors_folder(tmp_path / "none")
    with pytest.raises(ModelNotFound, match=r"config\.json: no such file"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    write_tokenizer(tmp_path)
    with pytest.raises(ModelNotFound, match="no safetensors weights"):
        read_safetensors_folder(tmp_path)
    for name in "ab":
        save_file({name: np.ones(1, dtype=np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelNotFound, match=r"2 safetensors files and no model\.safetensors\.index\.json"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert read_safetensors_folder(tmp_path).tensors.keys() == {"a"}

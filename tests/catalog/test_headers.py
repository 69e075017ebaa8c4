"""Headers of GGUF files: what the gguf package writes is read alike, and damage is named."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_models import write_gguf

from lingchat.catalog.headers import read_gguf
from lingchat.errors import EngineError, ModelFileError, ModelNotFound, UnsupportedModel


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def entry(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """`shape` as GGUF stores it, fastest dimension first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_file(
    path: Path,
    keys: tuple[bytes, ...] = (),
    entries: tuple[bytes, ...] = (),
    *,
    data: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> Path:
    """A GGUF file from its parts, with `data` bytes behind the padding."""
    head = magic + struct.pack("<IQQ", version, *(counts or (len(entries), len(keys)))) + b"".join((*keys, *entries))
    path.write_bytes(head + bytes(-len(head) % alignment) + bytes(data))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete model of a few kB."""
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    return write_gguf(path, "qwen2", hidden=32, heads=2, kv_heads=1, head_dim=16, ffn=32, layers=1, vocab=288).path


# ------------------------------------------------------------------------------------------------------- reading


def test_a_written_file_reads_back_to_the_last_key_and_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 1e300, "bool": True,
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_string("x.string", "Zoë 世界\n")
    writer.add_array("x.strings", ["a", "", "Ġthe"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.25, 1.5])
    writer.add_array("x.bools", [True, False])
    w = np.arange(64 * 3, dtype=np.float32).reshape(3, 64)
    writer.add_tensor("w", w)
    writer.add_tensor("q", gguf.quantize(w, gguf.GGMLQuantizationType.Q4_1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("cube", np.zeros((2, 3, 4), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read_gguf(path)
    for kind, value in values.items():
        assert header.metadata[f"x.{kind}"] == value
        assert type(header.metadata[f"x.{kind}"]) is type(value)
    assert header.metadata["x.string"] == "Zoë 世界\n"
    assert header.metadata["x.strings"] == ["a", "", "Ġthe"]
    assert header.metadata["x.ints"] == [1, -2, 3]
    assert header.metadata["x.floats"] == [0.25, 1.5]
    assert header.metadata["x.bools"] == [True, False]
    assert (header.version, header.parts) == (3, (path,))
    assert [(t.type, t.shape, t.nbytes) for t in header.tensors.values()] == [
        ("F32", (3, 64), 768),
        ("Q4_1", (3, 64), 120),
        ("F16", (2, 3, 4), 48),
    ]
    info = header.tensors["w"]
    assert path.read_bytes()[info.offset : info.offset + info.nbytes] == w.tobytes()


def test_tensor_places_are_those_of_the_gguf_package(whole: Path) -> None:
    theirs = {t.name: (t.tensor_type.name, t.data_offset, t.n_bytes) for t in gguf.GGUFReader(whole).tensors}
    assert {t.name: (t.type, t.offset, t.nbytes) for t in read_gguf(whole).tensors.values()} == theirs


def test_the_default_model_is_read_whole(default_model: Path) -> None:
    header = read_gguf(default_model)
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(header.metadata["tokenizer.ggml.merges"]) == 48900
    assert header.metadata["tokenizer.ggml.merges"][0] == "Ġ t"
    assert len(header.tensors) == 272
    assert header.tensors["token_embd.weight"][1:3] == ("Q8_0", (49152, 576))


def test_version_2_invalid_utf8_and_another_alignment(tmp_path: Path) -> None:
    keys = (
        key(b"general.alignment", 4, struct.pack("<I", 8)),
        key(b"t", 9, struct.pack("<IQ", 8, 1) + string(b"\xff\xe4")),
    )
    entries = (entry(b"a", (2,), 0, 0), entry(b"b", (2,), 0, 8))
    header = read_gguf(gguf_file(tmp_path / "m.gguf", keys, entries, data=16, version=2, alignment=8))
    assert header.metadata["t"][0].encode("utf-8", "surrogateescape") == b"\xff\xe4"
    assert header.tensors["b"].offset == (tmp_path / "m.gguf").stat().st_size - 8


def test_neither_torch_nor_numpy_is_imported(whole: Path) -> None:
    program = (
        "import sys; from lingchat.catalog.headers import read_gguf; read_gguf(sys.argv[1]); "
        "print([name for name in ('torch', 'numpy', 'gguf', 'safetensors') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program, str(whole)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


# -------------------------------------------------------------------------------------------------- damaged GGUF


def test_every_truncation_is_an_error_that_names_the_file(whole: Path, tmp_path: Path) -> None:
    data, cut = whole.read_bytes(), tmp_path / "cut.gguf"
    header = read_gguf(whole)
    last = max(t.offset + t.nbytes for t in header.tensors.values())
    start = min(t.offset for t in header.tensors.values())
    for size in [*range(0, start, 61), *range(start, last, 4999), last - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(
            ModelFileError, match=r"cut\.gguf: .*(damaged or incomplete; fetch it again|not a GGUF file)"
        ):
            read_gguf(cut)
    cut.write_bytes(data[:last])  # the padding behind the last tensor may be missing
    assert read_gguf(cut).tensors == header.tensors


@given(where=st.integers(0, 6000), value=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_is_read_or_refused_and_never_a_surprise(whole: Path, where: int, value: int) -> None:
    data = bytearray(whole.read_bytes())
    data[where] = value
    path = whole.with_name("changed.gguf")
    path.write_bytes(data)
    try:
        header = read_gguf(path)
    except EngineError as error:
        assert "changed" in str(error) or "part" in str(error)
        assert len(str(error)) < 1000
    else:
        assert all(t.offset + t.nbytes <= len(data) for t in header.tensors.values())


HUGE = 2**63
BAD_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"GGML"}, "not a GGUF file: it begins with b'GGML'"),
    "lfs pointer": ({"magic": b"version https://git-lfs.github.com/spec/v1"}, "git-lfs pointer"),
    "web page": ({"magic": b"<!DOCTYPE html><html>"}, "a web page"),
    "many tensors": ({"counts": (HUGE, 0)}, "9223372036854775808 tensors and 0 keys cannot fit"),
    "many keys": ({"counts": (0, 2**32)}, "4294967296 keys cannot fit"),
    "long key": ({"keys": (struct.pack("<Q", HUGE) + bytes(20),)}, "metadata key 1 of 1 at byte 32 needs"),
    "long string": ({"keys": (key(b"s", 8, struct.pack("<Q", 2**40)),)}, "metadata key s at byte"),
    "long in array": (
        {"keys": (key(b"s", 9, struct.pack("<IQ", 8, 2) + string(b"ok") + struct.pack("<Q", 2**50)),)},
        "string 2 of 2 in metadata key s reaches beyond the end",
    ),
    "array beyond": ({"keys": (key(b"s", 9, struct.pack("<IQ", 10, 2**20)),)}, "metadata key s .* needs 8388608 bytes"),
    "huge array": ({"keys": (key(b"s", 9, struct.pack("<IQ", 0, HUGE)),)}, "array of 9223372036854775808 values"),
    "deep array": (
        {"keys": (key(b"s", 9, struct.pack("<IQ", 9, 1) * 9 + bytes(64)),)},
        "metadata key s nests arrays more than 4 deep",
    ),
    "value type": ({"keys": (key(b"s", 13, bytes(8)),)}, "metadata key s .* unknown value type 13"),
    "item type": ({"keys": (key(b"s", 9, struct.pack("<IQ", 99, 1) + bytes(8)),)}, "unknown value type 99"),
    "bool": ({"keys": (key(b"s", 7, b"\2"),)}, "neither 0 nor 1"),
    "key twice": ({"keys": (key(b"s", 0, b"\1"), key(b"s", 0, b"\1"))}, "metadata key s comes twice"),
    "alignment 0": ({"keys": (key(b"general.alignment", 4, bytes(4)),)}, "general.alignment is 0, not a power of two"),
    "alignment 24": ({"keys": (key(b"general.alignment", 4, struct.pack("<I", 24)),)}, "general.alignment is 24"),
    "alignment text": ({"keys": (key(b"general.alignment", 8, string(b"32")),)}, "general.alignment is '32'"),
    "dimensions": ({"entries": (entry(b"w", (1, 1, 1, 1, 1), 0, 0),)}, "tensor w has 5 dimensions"),
    "many dimensions": ({"entries": (string(b"w") + struct.pack("<I", 2**31) + bytes(64),)}, "2147483648 dimensions"),
    "empty": ({"entries": (entry(b"w", (4, 0), 0, 0),)}, r"tensor w is empty, its shape is \(0, 4\)"),
    "row": ({"entries": (entry(b"w", (33, 2), 2, 0),), "data": 99}, r"tensor w of type Q4_0 .* no multiple of 32"),
    "offset": ({"entries": (entry(b"w", (8,), 0, 4096),), "data": 64}, "tensor w needs 32 bytes from byte 4160 on"),
    "huge offset": ({"entries": (entry(b"w", (8,), 0, 2**64 - 32),), "data": 64}, "tensor w needs 32 bytes"),
    "huge shape": ({"entries": (entry(b"w", (2**63, 2**63, 2**63), 0, 0),), "data": 64}, "tensor w needs"),
    "unaligned": ({"entries": (entry(b"w", (8,), 0, 4),), "data": 64}, "tensor w begins at 4, not a multiple"),
    "twice": ({"entries": (entry(b"w", (8,), 0, 0),) * 2, "data": 64}, "tensor w comes twice"),
    "overlap": ({"entries": (entry(b"v", (16,), 0, 0), entry(b"w", (8,), 0, 32)), "data": 64}, "v and w overlap"),
    "hostile name": ({"entries": (entry(b"\x1b[2Jw" + b"x" * 500, (4, 0), 0, 0),)}, r"tensor \\x1b\[2Jwx+\.\.\. is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_GGUF)
def test_damage_is_named_with_file_and_place(name: str, tmp_path: Path) -> None:
    parts, message = BAD_GGUF[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read_gguf(gguf_file(tmp_path / "m.gguf", **parts))
    assert str(caught.value).startswith(f"{tmp_path / 'm.gguf'}: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"version": 1}, "GGUF version 1. Versions 2 and 3 can be read"),
        ({"version": 4}, "GGUF version 4"),
        ({"version": 3 << 24}, "big-endian"),
        ({"entries": (entry(b"w", (256,), 77, 0),), "data": 999}, "tensor w has the weight type number 77"),
        ({"entries": (entry(b"w", (256,), 4, 0),), "data": 999}, "tensor w has the weight type number 4"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(parts: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_gguf(gguf_file(tmp_path / "m.gguf", **parts))


def test_a_type_without_decoder_has_a_header_all_the_same(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", entries=(entry(b"w", (256, 2), 11, 0),), data=220)
    assert read_gguf(path).tensors["w"][1:3] == ("Q3_K", (2, 256))


def test_missing_unreadable_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelFileError, match="0 bytes"):
        read_gguf(tmp_path / "empty.gguf")


# --------------------------------------------------------------------------------------------------- split GGUF


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_gguf(tmp_path / "m.gguf", "llama", layers=1, tensors_per_file=4)
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert [p.name for p in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_any_part_stands_for_the_model(parts: list[Path]) -> None:
    headers = [read_gguf(part) for part in parts]
    assert headers[0] == headers[1] == headers[2]
    assert headers[0].path == parts[0]
    assert headers[0].parts == tuple(parts)
    assert headers[0].metadata["general.architecture"] == "llama"
    assert {t.part for t in headers[0].tensors.values()} == {0, 1, 2}
    assert len(headers[0].tensors) == 11


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(ModelNotFound, match=r"1 of the model's 3 files missing: m-00002-of-00003\.gguf"):
        read_gguf(parts[0])


def test_a_name_that_promises_many_parts_does_not_list_them_all(parts: list[Path]) -> None:
    with pytest.raises(ModelNotFound, match=r"99998 of the model's 99999 files missing: .* and 99988 more") as caught:
        read_gguf(parts[0].rename(parts[0].with_name("m-00001-of-99999.gguf")))
    assert len(str(caught.value)) < 1000


def test_parts_of_two_models_do_not_mix(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf: it says part 1 of 3 .*mixed"):
        read_gguf(parts[0])


def test_a_part_must_keep_its_name(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(ModelFileError, match="split into 3 files"):
        read_gguf(renamed)
    with pytest.raises(ModelFileError, match="part 4 of 3"):
        read_gguf(parts[1].rename(parts[1].with_name("m-00004-of-00003.gguf")))

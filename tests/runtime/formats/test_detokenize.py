"""Whatever the chunking, the pieces of a reply add up to its text."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from formats_corpus import CORPUS, TEXTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lingchat.catalog.headers import read_gguf
from lingchat.runtime.formats.detokenize import Detokenizer
from lingchat.runtime.formats.gguf_tokenizer import gguf_tokenizer
from lingchat.runtime.formats.tokenizer import Tokenizer

MANY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return gguf_tokenizer(read_gguf(default_model).metadata)


def one_byte(id: int) -> bytes:
    return bytes([id])


def in_chunks(stream: Detokenizer, ids: list[int], cuts: list[int]) -> str:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    texts = [stream.push(ids[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join(texts) + stream.finish()


@MANY
@given(
    st.lists(st.sampled_from(b" A\n\xe4\xbd\xa0\xf0\x9f\x98\x80\xff\xc3"), max_size=40).map(bytes),
    st.lists(st.integers(0, 40)),
    st.booleans(),
)
def test_any_bytes_in_any_chunks_are_decoded_as_at_once(data: bytes, cuts: list[int], strip: bool) -> None:
    text = in_chunks(Detokenizer(one_byte, strip_space=strip), list(data), cuts)
    assert text == (data.removeprefix(b" ") if strip else data).decode("utf-8", "replace")


@MANY
@given(st.lists(st.integers(0, 49151), max_size=30), st.lists(st.integers(0, 30)))
def test_any_ids_in_any_chunks_are_decoded_as_at_once(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    assert in_chunks(tokenizer.decode_stream(), ids, cuts) == tokenizer.decode(ids)


@MANY
@given(TEXTS)
def test_a_character_appears_when_it_is_whole(text: str) -> None:
    stream, shown = Detokenizer(one_byte), ""
    for byte in text.encode():
        shown += stream.push([byte])
        assert text.startswith(shown)
    assert shown == text and stream.finish() == ""


def test_bytes_wait_for_their_character() -> None:
    stream = Detokenizer(one_byte)
    assert [stream.push([byte]) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_what_can_never_become_a_character_is_replaced_as_soon_as_that_is_known() -> None:
    stream = Detokenizer(one_byte)
    assert stream.push([0xFF]) == "\ufffd"
    assert stream.push([0xF0, 0x9F]) == ""
    assert stream.push([0x41]) == "\ufffdA"
    assert stream.push([0xE4, 0xBD]) == ""
    assert stream.finish() == "\ufffd"


def test_control_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<|im_end|>b<|endoftext|>", special=True)
    assert tokenizer.decode(ids) == "ab"


def test_a_control_token_does_not_break_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f9ff")
    assert len(ids) > 1
    assert tokenizer.decode([ids[0], 2, *ids[1:]]) == "\U0001f9ff"


def test_the_corpus_streamed_token_by_token(tokenizer: Tokenizer) -> None:
    for text in CORPUS:
        ids = tokenizer.encode(text)
        stream = tokenizer.decode_stream()
        assert "".join(stream.push([id]) for id in ids) + stream.finish() == tokenizer.decode(ids)

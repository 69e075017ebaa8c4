"""Sentencepiece-style ids by scores equal llama.cpp's, where scores tie as well as where they do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from formats_corpus import CORPUS, TEXTS
from formats_judge import Judge, judge, write_vocabulary
from hypothesis import HealthCheck, given, settings

from lingchat.errors import ModelFileError
from lingchat.runtime.formats.gguf_tokenizer import gguf_tokenizer
from lingchat.runtime.formats.tokenizer import Tokenizer

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sentencepiece(*, space: bool = True, ties: bool = False, with_bytes: bool = True) -> dict[str, Any]:
    """A vocabulary as converters write it, of pieces grown from the corpus by joining what stands side by side."""
    tokens, types, scores = ["<unk>", "<s>", "</s>"], [2, 3, 3], [0.0, 0.0, 0.0]
    if with_bytes:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        types += [6] * 256
        scores += [0.0] * 256
    text = "".join(CORPUS[:20]).replace(" ", "▁")
    pieces = list(dict.fromkeys(text[:4000]))
    grown = {"▁▁", "▁▁▁", "▁▁▁▁", "▁t", "▁th", "▁the", "aa", "aaa", "11", "111"}
    draw = random.Random(7)
    for size in (2, 3, 4, 6):
        for _ in range(300):
            at = draw.randrange(len(text) - size)
            grown.add(text[at : at + size])
    pieces += sorted(grown, key=lambda piece: (len(piece), piece))
    pieces = [piece for piece in dict.fromkeys(pieces) if piece not in tokens and not set(piece) & set("\0\ufffd")]
    draw.shuffle(pieces)
    tokens += pieces
    types += [1] * len(pieces)
    scores += [-float(rank // 40 if ties else rank) for rank in range(len(pieces))]
    tokens += ["<|user|>", "<tool>", "<tool>x"]
    types += [3, 4, 4]
    scores += [0.0, 0.0, 0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space,
    }


@pytest.fixture(
    scope="module",
    params=[{}, {"space": False}, {"ties": True}],
    ids=["scores", "no space prefix", "ties"],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, Judge]]:
    data = sentencepiece(**request.param)
    with judge(write_vocabulary(tmp_path_factory.mktemp("spm") / "model.gguf", data)) as found:
        yield gguf_tokenizer(data), found


SPECIALS = ["a<|user|>b", "<|user|> a<|user|>", "<tool>x <tool> y<tool>", " <s>a</s> b", "<unk>"]


def test_ids_equal_llama_cpps(pair: tuple[Tokenizer, Judge]) -> None:
    tokenizer, found = pair
    for text in [*CORPUS, *SPECIALS]:
        assert tokenizer.encode(text) == found.ids(text), text
        assert tokenizer.encode(text, special=True) == found.ids(text, special=True), text


@FEW
@given(text=TEXTS)
def test_ids_of_random_texts_equal_llama_cpps(pair: tuple[Tokenizer, Judge], text: str) -> None:
    tokenizer, found = pair
    assert tokenizer.encode(text) == found.ids(text)


@pytest.fixture(scope="module", params=[True, False], ids=["space prefix", "no space prefix"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return gguf_tokenizer(sentencepiece(space=request.param))


@FEW
@given(text=TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    plain = text.replace("▁", " ")  # these vocabularies cannot tell the two apart
    for token in ("<tool>x", "<tool>"):
        plain = plain.replace(token, "")
    assert tokenizer.decode(tokenizer.encode(plain)) == plain


def test_only_one_leading_space_is_dropped(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("  the")) == "  the"


def test_a_text_that_goes_on_keeps_its_space() -> None:
    tokenizer = gguf_tokenizer(sentencepiece())
    ids = tokenizer.encode("the end")
    stream = tokenizer.decode_stream(continues=True)
    assert stream.push(ids) + stream.finish() == " the end"


def test_bos_is_the_families_default() -> None:
    assert gguf_tokenizer(sentencepiece()).vocabulary.add_bos
    assert not gguf_tokenizer({**sentencepiece(), "tokenizer.ggml.add_bos_token": False}).vocabulary.add_bos


def test_a_long_text_takes_no_longer_a_character(tokenizer: Tokenizer) -> None:
    text = "the quick brown fox " * 20_000
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_scores_must_fit() -> None:
    with pytest.raises(ModelFileError, match=r"scores has 1 entries"):
        gguf_tokenizer({**sentencepiece(), "tokenizer.ggml.scores": [0.0]})
    with pytest.raises(ModelFileError, match=r"no tokenizer\.ggml\.scores"):
        gguf_tokenizer({**sentencepiece(), "tokenizer.ggml.scores": None})


def test_without_byte_tokens_what_no_token_spells_is_unknown() -> None:
    tokenizer = gguf_tokenizer(sentencepiece(with_bytes=False, space=False))
    assert tokenizer.encode("\U0001f9ff") == [0]

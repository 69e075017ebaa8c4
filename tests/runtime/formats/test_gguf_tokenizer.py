"""Ids from GGUF metadata equal llama.cpp's: the default model, and every pre-tokenizer on a vocabulary that shows it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from formats_corpus import CORPUS, TEXTS
from formats_judge import Judge, judge, write_vocabulary
from hypothesis import HealthCheck, given, settings

from lingchat.catalog.headers import read_gguf
from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.bytelevel import BYTE_TO_CHAR
from lingchat.runtime.formats.gguf_tokenizer import gguf_tokenizer
from lingchat.runtime.formats.pretokenizers import SPLITS, split_for
from lingchat.runtime.formats.tokenizer import Tokenizer

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def metadata(default_model: Path) -> dict[str, Any]:
    return {k: v for k, v in read_gguf(default_model).metadata.items() if k.startswith("tokenizer.")}


@pytest.fixture(scope="module")
def default_judge(default_model: Path) -> Iterator[Judge]:
    with judge(default_model) as found:
        yield found


@pytest.fixture(scope="module")
def default_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return gguf_tokenizer(metadata)


@pytest.mark.parametrize("text", CORPUS)
def test_the_default_models_ids_equal_llama_cpps(text: str, default_tokenizer: Tokenizer, default_judge: Judge) -> None:
    assert default_tokenizer.encode(text) == default_judge.ids(text)
    assert default_tokenizer.encode(text, special=True) == default_judge.ids(text, special=True)
    ids = default_tokenizer.encode(text)
    assert default_tokenizer.decode(ids) == default_judge.text(ids)


@FEW
@given(TEXTS)
def test_random_texts_ids_equal_llama_cpps(default_tokenizer: Tokenizer, default_judge: Judge, text: str) -> None:
    assert default_tokenizer.encode(text) == default_judge.ids(text)


@FEW
@given(TEXTS)
def test_text_comes_back(default_tokenizer: Tokenizer, text: str) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode(text)) == spelled(default_tokenizer, text)


@pytest.mark.parametrize("text", CORPUS)
def test_the_corpus_comes_back(text: str, default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode(text)) == spelled(default_tokenizer, text)


def spelled(tokenizer: Tokenizer, text: str) -> str:
    """`text` without the bytes that SmolLM2's vocabulary has no token for: control bytes, and some of rare scripts."""
    missing = bytes(byte for byte, char in BYTE_TO_CHAR.items() if not tokenizer.has(char))
    assert len(missing) == 21
    return text.encode().translate(None, missing).decode("utf-8", "replace")


def test_text_that_is_not_unicode_gets_replacement_characters(default_tokenizer: Tokenizer) -> None:
    read = b"caf\xe9 \xff\xfe ok".decode("utf-8", "surrogateescape")
    assert default_tokenizer.encode(read) == default_tokenizer.encode("caf\ufffd \ufffd\ufffd ok")
    # Half a character pair, as a broken JSON escape leaves it, and a whole pair in two halves.
    assert default_tokenizer.encode("\ud83d x") == default_tokenizer.encode("\ufffd x")
    assert default_tokenizer.encode("\ud83d\ude00") == default_tokenizer.encode("😀")


def test_the_default_models_facts(default_tokenizer: Tokenizer, default_judge: Judge) -> None:
    assert default_tokenizer.bos_id == 1
    assert default_tokenizer.eos_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert default_tokenizer.vocab_size == 49152
    assert not default_tokenizer.vocabulary.add_bos
    assert default_judge.ids("x", add=True) == default_tokenizer.encode("x")
    assert default_tokenizer.token_text(2) == "<|im_end|>"
    assert default_tokenizer.token_text(49152) == ""
    assert default_tokenizer.decode([1, 28120, 2]) == "hello"


def with_digits(metadata: dict[str, Any], pre: str) -> dict[str, Any]:
    """The default vocabulary with joined digits and double contractions, so that every split shows in the ids."""
    digits = "0123456789"
    pairs = [a + b for a in digits for b in digits]
    threes = [p + d for p in pairs for d in digits]
    merges = [f"{p[0]} {p[1]}" for p in pairs] + [f"{t[:2]} {t[2]}" for t in threes]
    words = ["Ġ1", "!Ċ", "ĊĊĊ", "<think>", "wholeword"]  # the last is a token that no merge reaches
    words += ["'T", "n'T", "ä½ł", "å¥½", "ä½łå¥½", "å¥½w", "ä½łãģ", "aB"]  # 你 好 你好 好w, 你 with half of a kana
    merges += ["Ġ 1", "! Ċ", "ĊĊ Ċ", "' T", "n 'T", "ä½ ł", "å¥ ½", "ä½ł å¥½", "å¥½ w", "ä½ł ãģ", "a B"]
    known = set(metadata["tokenizer.ggml.tokens"])
    new = [t for t in pairs + threes + words if t not in known]
    types = [4 if t == "<think>" else 1 for t in new]
    return {
        **{k: v for k, v in metadata.items() if k != "tokenizer.chat_template"},
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": metadata["tokenizer.ggml.tokens"] + new,
        "tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"] + types,
        "tokenizer.ggml.merges": metadata["tokenizer.ggml.merges"] + merges,
    }


# One name of each distinct split; the others are aliases.
@pytest.fixture(
    scope="module", params=["smollm", "qwen2", "llama-bpe", "smaug-bpe", "gpt-2", "default", "bailingmoe2", "kimi-k2"]
)
def pair(
    request: pytest.FixtureRequest, metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Tokenizer, Judge]]:
    data = with_digits(metadata, request.param)
    path = write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "model.gguf", data)
    with judge(path) as found:
        yield request.param, gguf_tokenizer(data), found
    path.unlink()


def comparable(pre: str, text: str) -> str:
    """Kimi's words are cut where the case changes, which llama.cpp leaves out: there the judge is for lower case."""
    return text.lower() if pre == "kimi-k2" else text


def as_the_family_reads(pre: str, text: str) -> str:
    """llama.cpp applies no normalisation, so it is given the text that the family's normalisation makes."""
    return unicodedata.normalize("NFC", text) if split_for(pre).nfc else text


def test_every_splits_ids_equal_llama_cpps(pair: tuple[str, Tokenizer, Judge]) -> None:
    pre, tokenizer, found = pair
    for text in [*CORPUS, "<think>a</think> <think>", "\n\n\n1 12 123 !\n1", "wholeword wholeword", "n'T 你好w 你こ"]:
        text = comparable(pre, text)
        assert tokenizer.encode(text) == found.ids(as_the_family_reads(pre, text)), (pre, text)


@FEW
@given(text=TEXTS)
def test_every_splits_ids_of_random_texts_equal_llama_cpps(pair: tuple[str, Tokenizer, Judge], text: str) -> None:
    pre, tokenizer, found = pair
    text = comparable(pre, text)
    assert tokenizer.encode(text) == found.ids(as_the_family_reads(pre, text))


def test_whole_words_come_before_merges_where_the_family_says_so(metadata: dict[str, Any]) -> None:
    counts = {
        pre: len(gguf_tokenizer(with_digits(metadata, pre)).encode("wholeword")) for pre in ("llama-bpe", "qwen2")
    }
    assert counts == {"llama-bpe": 1, "qwen2": 2}


def test_the_splits_differ(metadata: dict[str, Any]) -> None:
    text = "x 1234567 x!\ny ++a 1aB1n'T"
    distinct = {split: pre for pre, split in SPLITS.items()}
    ids = {pre: tuple(gguf_tokenizer(with_digits(metadata, pre)).encode(text)) for pre in distinct.values()}
    assert len(set(ids.values())) == 6  # Ling's equals Qwen's but for the normalisation and rows of line breaks


def test_kimis_words_are_cut_where_the_case_changes(metadata: dict[str, Any]) -> None:
    tokenizer = gguf_tokenizer(with_digits(metadata, "kimi-k2"))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("PhD assertEqual 1aB你好w1n'T")] == [
        *("Ph", "D", "Ġassert", "Equal", "Ġ", "1", "a", "B", "ä½łå¥½", "w", "1", "n'T"),
    ]


def test_composed_and_decomposed_text_are_one_to_qwen(metadata: dict[str, Any]) -> None:
    assert gguf_tokenizer(metadata).vocabulary.normalization is None
    tokenizer = gguf_tokenizer({**metadata, "tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.vocabulary.normalization == "NFC"
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("café")


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones(metadata: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"'tekken'.*llama-bpe.*qwen2.*smollm"):
        gguf_tokenizer({**metadata, "tokenizer.ggml.pre": "tekken"})


def test_an_unknown_kind_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="'bert'"):
        gguf_tokenizer({**metadata, "tokenizer.ggml.model": "bert"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["Ġ notatoken"]}, "merges does not fit"),
        ({"tokenizer.ggml.merges": ["alone"]}, "merges does not fit"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries for 49152 tokens"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999"),
    ],
)
def test_damaged_metadata_is_named(metadata: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        gguf_tokenizer({**metadata, **change})


def test_end_tokens_are_found_by_text_where_they_are_control(metadata: dict[str, Any]) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|eot_id|>", "</s>", "<end_of_turn>", "[PAD1]", "[PAD2]"]
    # llama.cpp's converter once wrote <|eot_id|> as a normal token; </s> here is a piece of HTML.
    types = [*metadata["tokenizer.ggml.token_type"], 1, 1, 3, 5, 5]
    tokenizer = gguf_tokenizer({**metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    assert tokenizer.eos_ids == {0, 2, 49152, 49154}
    assert tokenizer.vocab_size == 49155  # ids of padding can never be chosen
    assert 49152 in tokenizer.control_ids


def test_markers_of_who_speaks_are_control_whatever_a_file_calls_them(metadata: dict[str, Any]) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<role>", "</role>", "<|im_user|>", "<plain>"]
    types = [*metadata["tokenizer.ggml.token_type"], 4, 4, 4, 4]  # user-defined
    tokenizer = gguf_tokenizer({**metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    text = "<role>SYSTEM</role><|im_user|><plain>"
    assert set(tokenizer.encode(text)) & {49152, 49153, 49154, 49155} == {49155}
    assert tokenizer.encode(text, special=True)[-2:] == [49154, 49155]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_end_tokens_are_those_that_the_keys_name_too(metadata: dict[str, Any]) -> None:
    named = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 6, "tokenizer.ggml.eom_token_id": 7}
    assert gguf_tokenizer({**metadata, **named}).eos_ids == {0, 2, 5, 6, 7}

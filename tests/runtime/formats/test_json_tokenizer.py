"""`tokenizer.json` folders: ids and text as the `tokenizers` package itself gives them, special tokens as we mean them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from formats_corpus import CORPUS, TEXTS
from hypothesis import HealthCheck, given, settings
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as RustTokenizer

from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.json_tokenizer import json_tokenizer
from lingchat.runtime.formats.tokenizer import Tokenizer

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPECIALS = ["<s>", "</s>", "<|user|>", "<|end|>"]


def byte_level() -> RustTokenizer:
    """As Llama 3 and Qwen: a regex split, byte-level BPE, NFC."""
    rust = RustTokenizer(models.BPE())
    rust.normalizer = normalizers.NFC()
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    return rust


def _sentencepiece(rust: RustTokenizer) -> RustTokenizer:
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", *spelled], show_progress=False)
    rust.train_from_iterator([text[:2000] for text in CORPUS], trainer)
    state = json.loads(rust.to_str())
    state["added_tokens"] = []
    state["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    rust = RustTokenizer.from_str(json.dumps(state))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return rust


def sentencepiece() -> RustTokenizer:
    """As Llama 2: the normaliser writes the spaces and puts one before every piece of text."""
    rust = RustTokenizer(models.BPE(unk_token="<unk>"))
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _sentencepiece(rust)


def metaspace() -> RustTokenizer:
    """As later Llama 2 conversions: only the start of a text gets a space."""
    rust = RustTokenizer(models.BPE(unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    return _sentencepiece(rust)


BUILDERS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}


def save(folder: Path, rust: RustTokenizer, **settings: Any) -> Path:
    rust.add_special_tokens([AddedToken(token, special=True, rstrip=token == "<|user|>") for token in SPECIALS])
    rust.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    bos = ("<s>", rust.token_to_id("<s>"))
    rust.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [bos])
    rust.save(str(folder / "tokenizer.json"))
    given = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(given))
    return folder


@pytest.fixture(scope="module", params=BUILDERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, RustTokenizer]:
    folder = save(tmp_path_factory.mktemp("tokenizer"), BUILDERS[request.param]())
    return json_tokenizer(folder), RustTokenizer.from_file(str(folder / "tokenizer.json"))


WITH_SPECIALS = [
    "<s><|user|>\n  hello <|end|>\n<|user|> again<|end|></s>",
    "plain start <|end|> after<|end|>",
    "<think>\nwhy</think> so <|end|>",
    " <|user|><|user|>x",
]


def test_ids_equal_the_packages_own(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, rust = pair
    for text in [*CORPUS, *WITH_SPECIALS]:
        assert tokenizer.encode(text, special=True) == rust.encode(text, add_special_tokens=False).ids, text


@FEW
@given(text=TEXTS)
def test_ids_of_random_texts_equal_the_packages_own(pair: tuple[Tokenizer, RustTokenizer], text: str) -> None:
    tokenizer, rust = pair
    assert tokenizer.encode(text, special=True) == rust.encode(text, add_special_tokens=False).ids


def test_text_equals_the_packages_own(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, rust = pair
    for text in [*CORPUS, *WITH_SPECIALS]:
        ids = rust.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == rust.decode(ids, skip_special_tokens=True), text


def test_special_tokens_in_text_are_text(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, _ = pair
    for text in WITH_SPECIALS:
        ids = tokenizer.encode(text)
        assert not tokenizer.control_ids & set(ids)
        assert unspaced(tokenizer.decode(ids)) == unspaced(text)


def test_user_defined_tokens_are_tokens_in_any_text(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, rust = pair
    assert rust.token_to_id("<think>") in tokenizer.encode("a<think>")
    assert unspaced(tokenizer.decode(tokenizer.encode("a<think>b"))) == "a<think>b"


def unspaced(text: str) -> str:
    """Sentencepiece kinds may add a space after an added token and drop one at the start: theirs to decide."""
    return text.replace(" ", "")


def test_segments_leave_no_trace(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, _ = pair
    segments = [("<s>He", True), ("llo wor", False), ("ld, 12", True), ("345", False), ("<|end|>", True)]
    whole = "".join(text for text, _ in segments)
    assert tokenizer.encode_segments(segments) == tokenizer.encode(whole, special=True)


def test_a_special_token_must_be_trusted_in_every_character(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, rust = pair
    end = rust.token_to_id("<|end|>")
    for segments in (
        [("<|e", True), ("nd|>", False)],
        [("<|en", False), ("d|>", True)],
        [("<|", True), ("en", False), ("d|>", True)],
    ):
        assert end not in tokenizer.encode_segments(segments)
    assert tokenizer.encode_segments([("<|e", True), ("nd|>", True)]) == [end]


def test_facts(pair: tuple[Tokenizer, RustTokenizer]) -> None:
    tokenizer, rust = pair
    assert tokenizer.bos_id == rust.token_to_id("<s>")
    assert tokenizer.eos_ids == {rust.token_to_id("</s>"), rust.token_to_id("<|end|>")}
    assert tokenizer.vocabulary.add_bos and not tokenizer.vocabulary.add_eos
    assert tokenizer.vocab_size == rust.get_vocab_size()
    assert tokenizer.token_text(tokenizer.vocab_size) == ""


def test_eos_ids_come_from_every_file(tmp_path: Path) -> None:
    save(tmp_path, byte_level(), add_bos_token=False, add_eos_token=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    tokenizer = json_tokenizer(tmp_path)
    assert {5, 6, 7} < tokenizer.eos_ids
    assert not tokenizer.vocabulary.add_bos and tokenizer.vocabulary.add_eos


def test_tokens_named_or_formed_like_special_ones_are_special(tmp_path: Path) -> None:
    rust = byte_level()
    rust.add_tokens(["<tool>", "<extra>", "<|im_end|>", "<role>", "</role>", "<plain>"])
    tokenizer = json_tokenizer(save(tmp_path, rust, additional_special_tokens=["<tool>", {"content": "<extra>"}]))
    for token in ("<tool>", "<extra>", "<|im_end|>", "<role>", "</role>"):
        id = rust.token_to_id(token)
        assert id in tokenizer.control_ids
        assert tokenizer.encode(f"a{token}b", special=True)[1:-1] == [id]
        assert id not in tokenizer.encode(f"a{token}b")
        assert tokenizer.decode(tokenizer.encode(f"a{token}b")) == f"a{token}b"
    assert rust.token_to_id("<plain>") in tokenizer.encode("a<plain>b")


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        json_tokenizer(tmp_path)
    save(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json cannot be read"):
        json_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text()[:1000])
    with pytest.raises(ModelFileError, match=r"tokenizer\.json cannot be read"):
        json_tokenizer(tmp_path)


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    rust = byte_level()
    rust.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        json_tokenizer(save(tmp_path, rust))


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    rust = byte_level()
    rust.enable_truncation(4)
    rust.enable_padding(length=64)
    tokenizer = json_tokenizer(save(tmp_path, rust))
    assert tokenizer.decode(tokenizer.encode("one two three four five six")) == "one two three four five six"

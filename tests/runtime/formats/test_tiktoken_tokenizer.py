"""`tiktoken.model` folders: ids as the published algorithm gives them, on a made vocabulary; special tokens by id."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from formats_corpus import CORPUS, TEXTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, pre_tokenizers, trainers

from lingchat.errors import ModelFileError, UnsupportedModel
from lingchat.runtime.formats.bytelevel import token_bytes
from lingchat.runtime.formats.json_tokenizer import json_tokenizer
from lingchat.runtime.formats.pretokenizers import KIMI_SPLIT
from lingchat.runtime.formats.tokenizer import Tokenizer

FEW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMED = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 13: "<|tool_call_begin|>", 17: "<|im_middle|>",
}  # fmt: skip


@functools.cache
def made_ranks() -> dict[bytes, int]:
    """A byte-level vocabulary trained on the corpus: all bytes, then tokens in the order in which they were merged."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = KIMI_SPLIT.pre_tokenizer()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        CORPUS * 2, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    return {token_bytes(token): id for token, id in rust.get_vocab().items()}


def write(folder: Path, ranks: dict[bytes, int], **given: Any) -> Path:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    names = {str(len(ranks) + n): {"content": text, "special": True} for n, text in NAMED.items()}
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": names,
        "additional_special_tokens": ["<|im_end|>"],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        **given,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return json_tokenizer(write(tmp_path_factory.mktemp("kimi"), made_ranks()))


def plain_ids(ranks: dict[bytes, int], text: str) -> list[int]:
    """Byte pair encoding by ranks, as published with tiktoken: join the pair of lowest rank, the first of equals."""
    ids = []
    for piece in pieces(text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while piece.encode() not in ranks or len(parts) > 1:
            if piece.encode() in ranks:
                parts = [piece.encode()]
                break
            pairs = [ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts)]
            lowest = min(pairs, default=len(ranks))
            if lowest == len(ranks):
                break
            at = pairs.index(lowest)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


def pieces(text: str) -> list[str]:
    """The published split, told apart character by character instead of by one pattern."""
    found = []
    at = 0
    while at < len(text):
        end = at + piece_length(text[at:])
        found.append(text[at:end])
        at = end
    return found


HAN = re.compile(r"[\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9]")
CONTRACTION = re.compile(r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])")


def piece_length(text: str) -> int:
    han = run(text, 0, is_han)
    if han:
        return han
    lead = 1 if not category(text[0]).startswith(("L", "N")) and text[0] not in "\r\n" else 0
    for start in (lead, 0) if lead else (0,):  # the leading character is optional; a mark may also be a letter
        if length := word_length(text, start):
            return length
    numbers = run(text, 0, lambda c: category(c).startswith("N"))
    if numbers:
        return min(numbers, 3)
    space = 1 if text[0] == " " else 0
    signs = run(text, space, is_sign)
    if signs:
        return space + signs + run(text, space + signs, lambda c: c in "\r\n")
    blank = run(text, 0, str.isspace)
    breaks = max((i for i, c in enumerate(text[:blank]) if c in "\r\n"), default=-1)
    if breaks >= 0:
        return breaks + 1
    return blank - 1 if blank > 1 and blank < len(text) else blank


def word_length(text: str, start: int) -> int:
    """Upper case, then lower case at least once; else upper case at least once; then a contraction. 0 for no word."""
    upper = run(text, start, is_upper)
    for count in range(upper, -1, -1):
        lower = run(text, start + count, is_lower)
        if lower:
            return contracted(text, start + count + lower)
    return contracted(text, start + upper + run(text, start + upper, is_lower)) if upper else 0


def contracted(text: str, end: int) -> int:
    match = CONTRACTION.match(text, end)
    return match.end() if match else end


def run(text: str, start: int, holds: Any) -> int:
    count = 0
    while start + count < len(text) and holds(text[start + count]):
        count += 1
    return count


def category(char: str) -> str:
    return unicodedata.category(char)


def is_han(char: str) -> bool:
    return bool(HAN.match(char))


def is_upper(char: str) -> bool:
    return category(char) in ("Lu", "Lt", "Lm", "Lo", "Mn", "Mc", "Me") and not is_han(char)


def is_lower(char: str) -> bool:
    return category(char) in ("Ll", "Lm", "Lo", "Mn", "Mc", "Me") and not is_han(char)


def is_sign(char: str) -> bool:
    return not char.isspace() and not category(char).startswith(("L", "N"))


SAMPLES = [
    "getUserName iPhone HTTPServer PhD",
    "我爱Kimi你好world",
    "it's IT'S can'T you'LL",
    "a1b22c4444 x\n\n y",
    "々〇〡 ー",
]


@pytest.mark.parametrize("text", [*CORPUS, *SAMPLES])
def test_ids_are_those_of_the_published_algorithm(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == plain_ids(made_ranks(), text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


DENSE = st.text("aAbBsStT'é你好のかア한ǅʰ\u0301 1234\n\r\t.,-_", max_size=30)


@FEW
@given(st.one_of(DENSE, TEXTS))
def test_ids_of_random_texts_are_those_of_the_published_algorithm(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == plain_ids(made_ranks(), text)


@FEW
@given(
    st.lists(st.text("abc", min_size=2, max_size=5), min_size=1, max_size=12, unique=True), st.text("abc", max_size=12)
)
def test_any_way_to_make_a_token_counts(tmp_path_factory: pytest.TempPathFactory, words: list[str], text: str) -> None:
    """Ranks of any order, tokens that can be made in several ways or in none."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {word.encode(): 256 + n for n, word in enumerate(words)}
    if periodic(words):
        return
    tokenizer = json_tokenizer(write(tmp_path_factory.mktemp("ranks"), ranks))
    assert tokenizer.encode(text) == plain_ids(ranks, text)


def periodic(words: list[str]) -> bool:
    """One token made of equal parts in two ways, as "aaa": there the order of equal ranks may differ."""
    return any(len(set(word)) == 1 or word[: len(word) // 2] * 2 == word for word in words)


def test_special_tokens_have_their_ids(tokenizer: Tokenizer) -> None:
    first = len(made_ranks())
    for n, name in NAMED.items():
        assert tokenizer.encode(name, special=True) == [first + n]
        assert tokenizer.token_text(first + n) == name
        assert not tokenizer.control_ids & set(tokenizer.encode(name))
        assert tokenizer.decode(tokenizer.encode(name)) == name
    assert tokenizer.token_text(first + 5) == f"<|reserved_token_{first + 5}|>"
    assert tokenizer.vocab_size == first + 256
    assert tokenizer.bos_id == first and tokenizer.eos_ids == {first + 1, first + 2}
    assert not tokenizer.vocabulary.add_bos


def test_markers_of_calls_reach_the_parsers_and_others_do_not(tokenizer: Tokenizer) -> None:
    text = "<|im_middle|>a<|tool_calls_section_begin|><|tool_call_begin|>b<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == "a<|tool_calls_section_begin|><|tool_call_begin|>b"


def test_end_ids_come_from_the_generation_config_too(tmp_path: Path) -> None:
    folder = write(tmp_path, made_ranks())
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert json_tokenizer(folder).eos_ids == {7, len(made_ranks()) + 1, len(made_ranks()) + 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no token for the byte 0x00"),
        (b"AA== zero\n", "line 1 of .* is not a base64 token"),
        (b"A 0\n", "line 1 of .* is not a base64 token"),
        (b"AA== 0\nAQ== 2\n", "are not 0, 1, 2 and so on"),
        (b"AA== 0\nAA== 1\n", "are not 0, 1, 2 and so on"),
        (b"AA== 0\nAQ== 1\n", "no token for the byte 0x02"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    write(tmp_path, made_ranks())
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(ModelFileError, match=said):
        json_tokenizer(tmp_path)


def test_a_special_token_outside_its_ids_is_named(tmp_path: Path) -> None:
    write(tmp_path, made_ranks(), added_tokens_decoder={"5": {"content": "<|im_end|>"}})
    with pytest.raises(ModelFileError, match=r"gives '<\|im_end\|>' the id '5', but special tokens"):
        json_tokenizer(tmp_path)


def test_two_special_tokens_of_one_name_are_named(tmp_path: Path) -> None:
    first = len(made_ranks())
    twice = {str(first): {"content": "<|x|>"}, str(first + 1): {"content": "<|x|>"}}
    write(tmp_path, made_ranks(), added_tokens_decoder=twice)
    with pytest.raises(ModelFileError, match=r"'<\|x\|>' .* cannot have the id"):
        json_tokenizer(tmp_path)


def test_another_class_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path, made_ranks(), tokenizer_class="QWenTokenizer")
    with pytest.raises(UnsupportedModel, match=r"'QWenTokenizer'.*tokenizer\.json.*GGUF"):
        json_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json .* no tiktoken\.model either\. Copy"):
        json_tokenizer(tmp_path)

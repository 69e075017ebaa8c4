"""The splits before BPE, by the name that GGUF files give in `tokenizer.ggml.pre`.

A wrong split changes ids without any other sign, so an unknown name is refused. Each pattern is the one of the
model family's published `tokenizer.json`; `default` is llama.cpp's own, used where a converter knew no name.
Knows names and patterns only, no vocabularies.
"""

from __future__ import annotations

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers

from lingchat.errors import UnsupportedModel

# Written out as llama.cpp does: with (?i:) Oniguruma also lets U+017F (long s) stand for s.
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_LING = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
# Han characters by themselves; other words where lower case is followed by upper case, contractions at their end.
_UPPER, _LOWER = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case in (r"Lu}\p{Lt", "Ll"))
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*){_CONTRACTIONS}?"
_KIMI = rf"\p{{Han}}+|{_CASED}|\p{{N}}{{1,3}}|{_REST}"


class Split(msgspec.Struct, frozen=True):
    """One family's split: patterns applied one after another, each cutting the pieces of the one before."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a piece that is a token is taken whole, whatever the merges say
    add_bos: bool = False  # the family's default where the file does not say
    nfc: bool = False  # the family's normalisation, which GGUF files do not state

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2_SPLIT = Split((_GPT2,))
_SMOLLM = Split((r"\p{N}", _GPT2))
_LLAMA3_SPLIT = Split((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_SPLIT = Split((_QWEN2,), nfc=True)
_LING_SPLIT = Split((_LING,))
# As the publisher's tokenizer has it. llama.cpp's own code for this name does not cut words at a change of case, so
# it gives other ids to camelCase than the model was trained with.
KIMI_SPLIT = Split((_KIMI,))
_DEFAULT = Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

SPLITS: dict[str, Split] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2_SPLIT,
    "phi-2": _GPT2_SPLIT,
    "olmo": _GPT2_SPLIT,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "falcon3": _LLAMA3_SPLIT,
    "smaug-bpe": Split((_LLAMA3,)),
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "bailingmoe": _LING_SPLIT,
    "bailingmoe2": _LING_SPLIT,
    "llada-moe": _LING_SPLIT,
    "kimi-k2": KIMI_SPLIT,
}


def split_for(name: str) -> Split:
    """The split called `name`. Raises `UnsupportedModel` with the list of known names."""
    try:
        return SPLITS[name]
    except KeyError:
        known = ", ".join(sorted(SPLITS))
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known, and guessing would give wrong ids. "
            f"Known: {known}."
        ) from None

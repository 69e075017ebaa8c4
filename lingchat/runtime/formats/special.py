"""Which tokens are markers and which end a reply, where a model file does not say it in so many words.

Knows token texts only.
"""

from __future__ import annotations

from collections.abc import Mapping

# The end-of-turn and end-of-text tokens of published chat models, as llama.cpp recognises them by text.
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|role_end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "</s>",
        "<｜end▁of▁sentence｜>",
    }
)

# Ling's markers of who speaks. A file may call them user-defined, which is to say tokens wherever they are written;
# but then a message could speak for the system.
_ROLE_MARKERS = frozenset({"<role>", "</role>"})


def looks_special(token: str) -> bool:
    """True for an added token in the form of the families' markers, which some fine-tunes forget to call special.

    GGUF converters look at the form in the same way.
    """
    forms = (("<|", "|>"), ("<｜", "｜>"))
    return token in _ROLE_MARKERS or any(token.startswith(begin) and token.endswith(end) for begin, end in forms)


def end_ids(control: Mapping[str, int]) -> frozenset[int]:
    """The ids among `control` tokens that end a reply."""
    ends = {id for token, id in control.items() if token in END_TOKENS}
    if {"<|return|>", "<|call|>"} <= control.keys():
        ends.discard(control.get("<|end|>", -1))  # there <|end|> closes a part of a reply, not the reply
    return frozenset(ends)

"""What is peculiar to a family of models in how it talks: its markers, its calls, and a template where it has none.

One row a family. Knows markers, forms and templates; must not know files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lingchat.runtime.formats.calls import BARE_JSON, FENCED_JSON, PAIRS, SECTION, TAGGED_JSON, CallForm
from lingchat.runtime.formats.own_templates import CHATML, KIMI, LING

_JSON_CALLS = (TAGGED_JSON, FENCED_JSON, BARE_JSON)


class Family(msgspec.Struct, frozen=True):
    """A family is known by its `marks`: all of them are in the vocabulary, or all in the template.

    `calls` are the forms in which it writes tool calls. `template` is of our own wording, for checkpoints without one.
    """

    name: str
    marks: tuple[str, ...]
    calls: tuple[CallForm, ...]
    template: str | None = None


# The first that fits is taken.
FAMILIES = (
    Family("Ling", ("<role>", "</role>", "<|role_end|>"), (PAIRS, TAGGED_JSON), LING),
    Family(
        "Kimi", ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"), (SECTION,), KIMI
    ),
    Family("GLM", ("<arg_key>", "<arg_value>"), (PAIRS, TAGGED_JSON)),
    Family("ChatML", ("<|im_start|>", "<|im_end|>"), _JSON_CALLS, CHATML),
)
OTHER = Family("other", (), _JSON_CALLS)


def family_of(template: str | None, has_token: Callable[[str], bool]) -> Family:
    """The family of a model with this chat template, whose vocabulary says of a text whether it is a token."""
    for family in FAMILIES:
        if all(map(has_token, family.marks)) or (template and all(mark in template for mark in family.marks)):
            return family
    return OTHER

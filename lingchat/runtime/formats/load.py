"""Everything between text and ids for one model: `load_formats` reads it from a GGUF's metadata or a model folder.

Must not know weights: it needs only `.source`, `.metadata` and `.folder` of what the weights floor opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lingchat.errors import ModelFileError
from lingchat.runtime.formats.families import Family, family_of
from lingchat.runtime.formats.gguf_tokenizer import gguf_tokenizer
from lingchat.runtime.formats.json_tokenizer import json_tokenizer, read_json
from lingchat.runtime.formats.markers import THINK_OPEN
from lingchat.runtime.formats.parsers import ReplyParser
from lingchat.runtime.formats.sampling import folder_sampling, gguf_sampling
from lingchat.runtime.formats.template import ChatTemplate, MessageLike, own_template
from lingchat.runtime.formats.tokenizer import Tokenizer
from lingchat.runtime.formats.tools import Tools


class WeightsLike(Protocol):
    """What is read of an opened model: `metadata` for `source` "gguf", `folder` for "safetensors"."""

    @property
    def source(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation. `thinking`: the template has already opened the reply's reasoning.

    `tools` are those that were offered in it; the reply's parser reads its calls by them.
    """

    ids: list[int]
    thinking: bool = False
    tools: Tools = field(default_factory=Tools, compare=False)


class Formats:
    """Tokenizer and template of one model. `vocab_size` counts the ids that have a token; the engine masks the rest.

    `reasons`: replies may hold reasoning. `takes_tools` is False when the template does not show tools to the model:
    a request that offers some should then be told. `thinking_switch` is False when `enable_thinking` changes nothing in
    the template. `suggested_sampling` is what the model's publisher suggests, by the names of `Sampling`'s fields;
    empty where the files do not say.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        template_adds_bos: bool,
        family: Family | None = None,
        suggested_sampling: Mapping[str, float] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.family = family or family_of(template.text, tokenizer.has)
        self.vocab_size = tokenizer.vocab_size
        self.suggested_sampling = dict(suggested_sampling or {})
        self.reasons = bool(template.text and THINK_OPEN in template.text) or tokenizer.has(THINK_OPEN)
        self.takes_tools = template.takes_tools
        self.thinking_switch = template.has_thinking_switch
        self._template_adds_bos = template_adds_bos

    def prompt(
        self,
        messages: Sequence[MessageLike],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        enable_thinking: bool | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt that asks for the next reply. `variables` reach the template.

        `tools` are JSON schemas of functions, with or without `{"type": "function", "function": ...}` around them.
        `enable_thinking` None leaves it to the template whether to reason. BOS is put in front where the vocabulary
        asks for it and the template did not write it. Raises `TemplateError`, and `UsageError` for tools or calls that
        are none.
        """
        offered = Tools(tools)
        if enable_thinking is not None:
            # Families differ in the word.
            variables |= {"enable_thinking": enable_thinking, "thinking": enable_thinking}
        segments = self.template.render(messages, tools=offered.schemas, **variables)
        ids = self.tokenizer.encode_segments(segments)
        vocabulary = self.tokenizer.vocabulary
        if vocabulary.add_bos and self._template_adds_bos and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)  # type: ignore[arg-type]  # add_bos implies a BOS
        end = segments[-1] if segments else None
        thinking = end is not None and end.from_template and end.text.rstrip().endswith(THINK_OPEN)
        return Prompt(ids, thinking and self.reasons, offered)

    def text_ids(self, text: str) -> list[int]:
        """Ids of text given without a template, with the BOS and EOS that the vocabulary asks for."""
        vocabulary = self.tokenizer.vocabulary
        ids = self.tokenizer.encode(text)
        if vocabulary.add_bos and vocabulary.bos_id is not None:
            ids.insert(0, vocabulary.bos_id)
        if vocabulary.add_eos:
            ids.append(vocabulary.control[vocabulary.named["eos_token"]])
        return ids

    def message_ends(self, ids: Sequence[int]) -> list[int]:
        """Offsets in a prompt right after each token that ends a message: good places to keep a snapshot."""
        ends = self.tokenizer.eos_ids
        return [i + 1 for i, id in enumerate(ids) if id in ends]

    def reply_parser(self, prompt: Prompt | None = None) -> ReplyParser:
        """A fresh parser of a reply to `prompt`: reasoning, text and tool calls."""
        return ReplyParser(
            reasons=self.reasons,
            inside=prompt is not None and prompt.thinking,
            forms=self.family.calls,
            tools=prompt.tools if prompt is not None else None,
        )

    def close(self) -> None:
        """Ends the template's process."""
        self.template.close()


def load_formats(weights: WeightsLike) -> Formats:
    """Formats of an opened model.

    Raises `UnsupportedModel` for an unknown tokenizer and `ModelFileError` for a damaged one. A model without a chat
    template loads; its `template` is then ours for the family whose markers the vocabulary has, or refuses.
    """
    gguf = weights.source == "gguf"
    if gguf:
        text, source = weights.metadata.get("tokenizer.chat_template"), "tokenizer.chat_template"
    else:
        text, source = _folder_template(Path(weights.folder))
    # The process comes up while the vocabulary is read.
    template = ChatTemplate(text, source=source)
    if text is not None:
        template.start()
    try:
        tokenizer = gguf_tokenizer(weights.metadata) if gguf else json_tokenizer(Path(weights.folder))
        suggested = gguf_sampling(weights.metadata) if gguf else folder_sampling(Path(weights.folder))
    except BaseException:
        template.close()
        raise
    template.variables.update(tokenizer.vocabulary.named)
    family = family_of(text, tokenizer.has)
    if text is None and family.template is not None:
        template = own_template(family.name, family.template, tokenizer.vocabulary.named)
    # llama.cpp adds a missing BOS to a chat prompt; transformers leaves the prompt as the template wrote it. Each kind
    # of file was made for one of them.
    return Formats(tokenizer, template, template_adds_bos=gguf, family=family, suggested_sampling=suggested)


def _folder_template(folder: Path) -> tuple[str | None, str]:
    """The chat template of a model folder and the file it is from."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path.name
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path} cannot be read: {error}.") from error
    name = "tokenizer_config.json"
    found = read_json(folder / name).get("chat_template")
    if isinstance(found, list):  # several by name
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ModelFileError(f"chat_template in {folder / name} is not text.")
    return found, name

"""Everything between text and ids for one model: `load_formats` reads it from a GGUF's metadata or a model folder.

Must not know weights: it needs only `.source`, `.metadata` and `.folder` of what the weights floor opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lingchat.errors import ModelFileError
from lingchat.runtime.formats.gguf_tokenizer import gguf_tokenizer
from lingchat.runtime.formats.json_tokenizer import json_tokenizer, read_json
from lingchat.runtime.formats.markers import THINK_OPEN as OPEN
from lingchat.runtime.formats.parsers import ReplyParser
from lingchat.runtime.formats.template import ChatTemplate, MessageLike, chatml_fallback
from lingchat.runtime.formats.tokenizer import Tokenizer


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
    """A rendered conversation. `thinking`: the template has already opened the reply's reasoning."""

    ids: list[int]
    thinking: bool = False


class Formats:
    """Tokenizer and template of one model. `vocab_size` counts the ids that have a token; the engine masks the rest."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, *, template_adds_bos: bool) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.vocab_size = tokenizer.vocab_size
        self._template_adds_bos = template_adds_bos
        self.reasons = bool(template.text and OPEN in template.text) or tokenizer.has(OPEN)

    def prompt(self, messages: Sequence[MessageLike], **variables: Any) -> Prompt:
        """The prompt that asks for the next reply. `variables` reach the template (enable_thinking=False).

        BOS is put in front where the vocabulary asks for it and the template did not write it. Raises `TemplateError`.
        """
        segments = self.template.render(messages, **variables)
        ids = self.tokenizer.encode_segments(segments)
        vocabulary = self.tokenizer.vocabulary
        if vocabulary.add_bos and self._template_adds_bos and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)  # type: ignore[arg-type]  # add_bos implies a BOS
        end = segments[-1] if segments else None
        thinking = end is not None and end.from_template and end.text.rstrip().endswith(OPEN)
        return Prompt(ids, thinking and self.reasons)

    def prompt_ids(self, messages: Sequence[MessageLike], **variables: Any) -> list[int]:
        """The ids of `prompt`."""
        return self.prompt(messages, **variables).ids

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

    def reply_parser(self, prompt: Prompt | None = None) -> ReplyParser | None:
        """A fresh splitter of reasoning and answer; None for a model that does not mark its reasoning."""
        return ReplyParser(inside=prompt is not None and prompt.thinking) if self.reasons else None

    def close(self) -> None:
        """Ends the template's process."""
        self.template.close()


def load_formats(weights: WeightsLike) -> Formats:
    """Formats of an opened model.

    Raises `UnsupportedModel` for an unknown tokenizer and `ModelFileError` for a damaged one. A model without a chat
    template loads; its `template` then falls back to ChatML if the vocabulary has ChatML's markers, or refuses.
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
    except BaseException:
        template.close()
        raise
    template.variables.update(tokenizer.vocabulary.named)
    if text is None and {"<|im_start|>", "<|im_end|>"} <= tokenizer.vocabulary.control.keys():
        template = chatml_fallback(tokenizer.vocabulary.named)
    # llama.cpp adds a missing BOS to a chat prompt; transformers leaves the prompt as the template wrote it. Each kind
    # of file was made for one of them.
    return Formats(tokenizer, template, template_adds_bos=gguf)


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

"""Splits streamed Markdown into finished top-level blocks and a growing tail.

`BlockSplitter.append` takes any chunking. It decides only on whole lines, parses only the tail and only when a new line
can end the open block, so a flush costs what the tail costs, never what the message costs. `parse` takes the whole
text at its end; its blocks are the truth, whatever the chunking was. Blocks seen earlier differ from it only where later text
reaches back (a link reference defined below its use), and `Block.digest` says which.

HTML is off: what the model wrote as tags is text and is shown. The source is never altered: offsets count characters of
the text as it arrived, and the code of a fence is the code that was written.

Knows markdown-it; knows no widgets, no styles, no widths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_CORE_BLOCK = ["block"]
_CORE_INLINE = ["inline", "linkify", "text_join"]
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_KINDS = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "bullet_list_open": "bullet_list",
    "ordered_list_open": "ordered_list",
    "blockquote_open": "blockquote",
    "table_open": "table",
    "fence": "fence",
    "code_block": "code_block",
    "hr": "hr",
}


class _Parsers:
    """Of blocks, and of what stands in their lines."""

    def __init__(self) -> None:
        self.blocks, self.inline = _parser(_CORE_BLOCK), _parser(_CORE_INLINE)


def _parser(core: list[str]) -> MarkdownIt:
    from markdown_it import MarkdownIt  # a twelfth of the screen's start, and needed with the first reply

    parser = MarkdownIt("commonmark", {"html": False, "linkify": True}).enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(core)
    if parser.linkify is None:  # textual brings linkify-it; without it markdown-it only fails at the first link
        raise RuntimeError("linkify-it-py is missing")
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    return parser


# `parse` may run in a thread beside the splitter, and a parser's linkifier holds state.
_streaming = cache(_Parsers)
_whole = cache(_Parsers)
_WHOLE_LOCK = Lock()
LIGHT_LINES = 60


class Block(msgspec.Struct, frozen=True, dict=True):
    """One top-level block. `start` and `end` bound its lines in the message's text; `tokens` hold its inline parts.

    A `light` block came from the splitter and is long: its inline parts are not parsed, so that the flush that ends it
    costs no more than others. `parse` knows no light blocks.
    """

    kind: str
    start: int
    end: int
    tokens: tuple[Token, ...]
    light: bool = False

    @cached_property
    def digest(self) -> bytes:
        """Equal for blocks that look and read the same; 16 bytes over kind, tokens and their inline children."""
        digest = blake2b(self.kind.encode(), digest_size=16)
        for token in self.tokens:
            _update(digest, token)
            for child in token.children or ():
                _update(digest, child)
        return digest.digest()

    @cached_property
    def codes(self) -> tuple[str, ...]:
        """The source of each fence or indented code block inside, in order (see `code_sources`)."""
        return tuple(token.content for token in self.tokens if token.type in ("fence", "code_block"))


def _update(digest: Any, token: Token) -> None:
    fields = (token.type, token.tag, token.level, token.content, token.info, sorted(token.attrs.items()), token.hidden)
    digest.update(repr(fields).encode("utf-8", "surrogatepass"))


def warm_up() -> None:
    """Make the parsers, which takes a start's time, before the first reply asks for them. For a thread."""
    _streaming()
    with _WHOLE_LOCK:
        _whole()


def parse(text: str) -> list[Block]:
    """The blocks of the whole `text`: the truth every chunking must reach. May be called from any thread."""
    text = _parseable(text)
    env: dict[str, Any] = {}
    with _WHOLE_LOCK:
        parsers = _whole()
        tokens = _run(parsers.inline, "", _run(parsers.blocks, text, [], env), env)
    return [Block(*place, tuple(group)) for *place, group in _groups(tokens, _line_starts(text), 0)]


def code_sources(text: str) -> list[str]:
    """The source of every code block of `text`, in order, exactly as written."""
    sources: list[str] = []
    for block in parse(text):
        raw = text[block.start : block.end]
        if block.kind == "fence" and "\r\n" in raw:  # parsed with a space for the carriage return
            lines = raw.split("\n")[1 : 1 + block.codes[0].count("\n")]
            sources.append("".join(line + "\n" for line in lines))
        else:
            sources += block.codes
    return sources


def _parseable(text: str) -> str:
    """As long as `text`; a carriage return before a newline is a space, so that lines end as the parser expects."""
    return text.replace("\r\n", " \n") if "\r" in text else text


def _run(parser: MarkdownIt, text: str, tokens: list[Token], env: dict[str, Any]) -> list[Token]:
    from markdown_it.rules_core import StateCore

    state = StateCore(text, parser, env)
    state.tokens = tokens
    parser.core.process(state)
    return state.tokens


def _line_starts(text: str) -> list[int]:
    """Character offsets at which lines start, with the end of the text as the last entry."""
    starts = [0]
    at = text.find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    if starts[-1] != len(text):
        starts.append(len(text))
    return starts


def _groups(tokens: Sequence[Token], starts: list[int], base: int) -> Iterator[tuple[str, int, int, list[Token]]]:
    """Tokens by top-level block, with its kind, start and end; lines count from offset `base`."""
    group: list[Token] = []
    last = len(starts) - 1
    for token in tokens:
        group.append(token)
        if token.level == 0 and token.nesting <= 0:
            first, end = group[0].map or [0, 0]
            yield _KINDS[group[0].type], base + starts[min(first, last)], base + starts[min(end, last)], group
            group = []


class Fence(msgspec.Struct, frozen=True):
    """An open fence at the top level: the language written after it, and where its code starts in the text."""

    info: str
    start: int


class BlockSplitter:
    """Feeds on chunks; gives finished blocks as early as they are certain."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""  # a carriage return that may belong to the next chunk's newline
        self._start = 0  # where the tail starts
        self._seen = 0  # whole lines up to here are examined
        self._quiet: Callable[[str], bool] | None = None  # true for a line that cannot end the open block
        self._env: dict[str, Any] = {}
        self.fence: Fence | None = None

    @property
    def start(self) -> int:
        """Offset of the tail: the text that belongs to no finished block."""
        return self._start

    @property
    def source(self) -> str:
        """All that has arrived."""
        return self.text + self._held

    @property
    def tail(self) -> str:
        return self.text[self._start :]

    def append(self, delta: str) -> list[Block]:
        """Takes a chunk; returns the blocks it finished."""
        delta = self._held + delta
        self._held = ""
        if delta.endswith("\r"):
            delta, self._held = delta[:-1], "\r"
        self.text += delta
        end = self.text.rfind("\n", self._seen) + 1
        if end <= self._seen:
            return []
        lines = self.text[self._seen : end].split("\n")[:-1]
        self._seen = end
        if self._quiet is not None and all(map(self._quiet, lines)):
            return []
        return self._split(end)

    def close(self) -> str:
        """No more comes; the whole text, for `parse`."""
        self.text += self._held
        self._held = ""
        return self.text

    def _split(self, end: int) -> list[Block]:
        tail = _parseable(self.text[self._start : end])
        env: dict[str, Any] = {"references": dict(self._env.get("references", {}))}
        tokens = _run(_streaming().blocks, tail, [], env)
        tops = [index for index, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        self._quiet = self.fence = None
        if not tops:
            return []
        starts = _line_starts(tail)
        last = tokens[tops[-1]]
        assert last.map is not None
        if _closed(last, tail, starts):
            done, cut = len(tokens), starts[last.map[1]]
        else:
            # The tail begins where the block before ends: lines of no block between them are a link definition, which
            # the next line may still continue.
            before = tokens[tops[-2]].map if len(tops) > 1 else None
            done, cut = tops[-1], starts[before[1]] if before else 0
            self._watch(last)
            if last.type == "fence":
                self.fence = Fence(last.info.strip(), self._start + starts[min(last.map[0] + 1, len(starts) - 1)])
        if not done:
            return []
        self._env = env
        base, self._start = self._start, self._start + cut
        blocks = []
        for kind, first, last_end, group in _groups(tokens[:done], starts, base):
            span = group[0].map or [0, 0]
            light = span[1] - span[0] > LIGHT_LINES
            group = group if light else _run(_streaming().inline, "", group, env)
            blocks.append(Block(kind, first, last_end, tuple(group), light))
        return blocks

    def _watch(self, token: Token) -> None:
        """Chooses the cheap test that tells whether a line can end the open block.

        A test that wrongly answers "cannot" only delays a block: the next line that can, or the end, sets it right.
        """
        kind = _KINDS[token.type]
        if kind == "fence":
            closing = _closing(token)
            self._quiet = lambda line: not closing.fullmatch(line)
        elif kind in ("bullet_list", "ordered_list"):
            marker = re.compile(r"(?:\s*|\s{{2,}}.*|[{}] +[^-*_ ].*|\d+[.)] .*)".format(re.escape(token.markup or "-")))
            self._quiet = lambda line: marker.fullmatch(line) is not None
        elif kind == "table":
            self._quiet = lambda line: line.startswith("|")
        elif kind == "blockquote":
            self._quiet = lambda line: line.startswith(">")
        elif kind == "code_block":
            self._quiet = lambda line: line.startswith("    ") or not line.strip()
        else:
            self._quiet = lambda line: line[:1].isalpha() and "|" not in line


def _closing(token: Token) -> re.Pattern[str]:
    mark = re.escape(token.markup[0])
    return re.compile(rf" {{0,3}}{mark}{{{len(token.markup)},}}\s*")


def _closed(token: Token, tail: str, starts: list[int]) -> bool:
    """Whether no later line can change this block, the last of `tail` (whole lines only)."""
    assert token.map is not None
    first, end = token.map
    if token.type in ("heading_open", "hr"):
        return True
    if token.type == "fence":
        return (
            end - first > 1 and _closing(token).fullmatch(tail[starts[end - 1] : starts[end]].rstrip("\n")) is not None
        )
    if token.type in ("paragraph_open", "table_open", "blockquote_open") and end < len(starts) - 1:
        return not tail[starts[end] : starts[end + 1]].strip(" \t\n")
    return False

"""Streaming Markdown: any chunking gives the blocks of the whole text, early, cheaply and with the exact source."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ui.markdown_corpus import CORPUS, documents, markdown_soup

from lingchat.ui.widgets import blocks as blocks_module
from lingchat.ui.widgets.blocks import Block, BlockSplitter, code_sources, parse


def same(found: list[Block]) -> list[tuple[str, int, int, bytes]]:
    return [(block.kind, block.start, block.end, block.digest) for block in found]


def stream(text: str, cuts: list[int]) -> tuple[list[Block], BlockSplitter]:
    splitter = BlockSplitter()
    found: list[Block] = []
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        found += splitter.append(text[start:end])
    return found, splitter


def agrees(early: list[Block], text: str) -> None:
    """Blocks found early are those of the whole: the same places and kinds; the same content but for late definitions."""
    whole = parse(text)
    assert [(b.kind, b.start, b.end) for b in early] == [(b.kind, b.start, b.end) for b in whole][: len(early)]
    if "]:" not in text:
        assert same(early) == same(whole)[: len(early)]


@pytest.mark.parametrize("text", CORPUS)
def test_character_by_character(text: str) -> None:
    early, splitter = stream(text, list(range(len(text))))
    agrees(early, text)
    assert splitter.close() == text


@settings(max_examples=200, deadline=None)
@given(documents | markdown_soup, st.lists(st.integers(min_value=0), max_size=40))
def test_any_chunking_gives_the_blocks_of_the_whole(text: str, cuts: list[int]) -> None:
    early, splitter = stream(text, cuts)
    agrees(early, text)
    assert splitter.close() == text
    assert splitter.start <= len(text)


def test_blocks_are_given_as_soon_as_they_are_certain() -> None:
    splitter = BlockSplitter()
    assert splitter.append("# Title\n")[0].kind == "heading"
    assert splitter.append("text") == []
    assert splitter.append("\n") == []  # more lines may come
    assert [block.kind for block in splitter.append("\n")] == ["paragraph"]
    assert splitter.append("```\ncode\n") == []
    assert splitter.fence is not None
    assert [block.kind for block in splitter.append("```\n")] == ["fence"]
    assert splitter.fence is None
    assert splitter.tail == ""


def test_a_late_definition_changes_only_the_blocks_that_use_it() -> None:
    text = "plain\n\nsee [x]\n\nmore\n\n[x]: http://example.org\n"
    early, _ = stream(text, list(range(len(text))))
    whole = parse(text)
    assert [a.digest == b.digest for a, b in zip(early, whole, strict=False)] == [True, False, True]


def test_an_open_block_is_not_parsed_again_for_lines_that_cannot_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    run = blocks_module._run

    def counted(parser: object, text: str, *rest: object) -> object:
        parsed.append(len(text))
        return run(parser, text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks_module, "_run", counted)
    for line in (
        "```\n" + "x = 1\n" * 500,
        "- item\n" * 500,
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 500,
        "words\n" * 500,
    ):
        splitter = BlockSplitter()
        parsed.clear()
        for at in range(0, len(line), 7):
            splitter.append(line[at : at + 7])
        assert sum(parsed) < 200, line[:20]


def test_long_blocks_are_light_and_the_final_parse_is_not() -> None:
    text = "- **item**\n" * 61 + "\nend\n\n"
    early, _ = stream(text, [])
    assert early[0].light
    assert not any(block.light for block in parse(text))


def test_code_is_the_exact_source() -> None:
    text = "```py\n\tx = '\x1b[0m'  \n\n漢\n```\n\n- ~~~\n  nested\n  ~~~\n\n---\n\n    indented\n\n```\r\na\r\n\r\n```\r\n"
    assert code_sources(text) == ["\tx = '\x1b[0m'  \n\n漢\n", "nested\n", "indented\n", "a\r\n\r\n"]
    assert code_sources("```\nopen") == ["open"]

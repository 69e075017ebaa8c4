"""Markdown that is awkward to stream: texts, documents made of them, and soup."""

from __future__ import annotations

from hypothesis import strategies as st

CORPUS = [
    "One paragraph\nof two lines\n\nand another.",
    "# Title\ntext right below\n## Sub\n",
    "Setext\n===\n\nOther\n---\ntext\n",
    "- a\n- b\n\n- c after a blank line\n\n  a second paragraph\n\nend of the list\n",
    "1. one\n2. two\n\n3. three\n   - nested\n     - deeper\n\n10. ten\n",
    "- a\n* another list\n+ and another\n1) one\n1. other\n",
    "- item\nlazy continuation\n- item\n\nparagraph\n",
    "```python\nfor x in y:\n\n    print(x)\n```\nafter\n",
    "````md\n```\ninner\n```\n````\n",
    "~~~\ntilde ``` inside\n~~~\n",
    "text\n```\nunclosed\n\nfence",
    "- list\n  ```sh\n  nested fence\n\n  still\n  ```\n- more\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n| 3 | `x|y` |\n\nafter\n",
    "para\n| a | b |\n|---|---|\n| 1 | 2 |\nnot a row\n\n",
    "> quote\n> more\nlazy\n\n> another\n> ```\n> code\n> ```\n",
    "A [link][later] and [other].\n\ntext\n\n[later]: http://example.org 'title'\n[other]: <http://x.org>\n",
    "[a]: /url\n\nuse [a]\n\n[b]:\n/url2\n\nuse [b]\n",
    "[a]: /url\n'title over\ntwo lines'\n\n[a]\n",
    "    indented code\n\n    more of it\n\ntext\n\n\tby tab\n",
    "***\n---\n___\n- - -\n* * *\n",
    "<div>\n*text*\n\n</div>\n<!-- a\n\ncomment -->\n<script>\n",
    "漢字のテキスト。\n\n- 項目\n- 👩‍💻 emoji ❤️\n\né combining ﷽\n",
    "hard  \nbreak\\\nhere **bold *both* bold** ~~gone~~ `code` https://example.org/x\n",
    "1. a\n\n\n\n1. b\n",
    "a\r\nb\r\n\r\n```\r\ncode\r\n```\r\n\r\nc\r",
    "esc \x1b[31m red \x07 bell\n\nnext \x00 nul\n",
    "\n\n\nleading blank lines\n\n\n\n",
    "-\n\n  not in the item\n",
    "1.\n\n2.\n",
    "\\[ x = y \\]\n\n$$\nz\n$$\n",
    "",
]


documents = st.lists(st.sampled_from(CORPUS), min_size=1, max_size=4).map("\n".join)
markdown_soup = st.lists(
    st.sampled_from(
        [
            "- ",
            "  ",
            "    ",
            "\n",
            "\n\n",
            "```",
            "> ",
            "|",
            "---",
            "# ",
            "1. ",
            "*",
            "`",
            "word ",
            "[a]",
            "]: u",
            "漢",
            "\r",
            "\t",
        ]
    ),
    max_size=60,
).map("".join)

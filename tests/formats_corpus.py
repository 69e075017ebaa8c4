"""Texts on which tokenizers differ, and the alphabets of random ones."""

from __future__ import annotations

from hypothesis import strategies as st

CORPUS = [
    "",
    " ",
    "Hello, world!",
    " leading and trailing ",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 ½ ² ٣٤٥ 一二三 Ⅷ",
    "a1b22c333d4444 x86_64 2024-11-29T16:05:46Z",
    "I'm you're he's we'll they'd I've don't DON'T I'M YOU'RE 'tis rock'n'roll ''s 's 'S 'ſ",
    "a  b   c    d     e      f\tg\t\th \t i",
    "\n\n\na\n\n b \n  c\r\nd\r\n\r\ne\n \n \n",
    "trailing spaces   \nand tabs\t\t\n   ",
    "def f(x: int) -> str:\n    if x >= 0x1F and not x % 2:\n\t\treturn f\"{x!r:>10}\"  # comment\n    return ''\n",
    '<div class="a">&nbsp;</div><!-- x --> { "key": [1, 2.5e-3, null] } /* ** */ #!/bin/sh $PATH || && ^~`\\',
    "snake_case camelCase SCREAMING_CASE kebab-case a.b.c ../path/to/file.py C:\\Users\\x",
    "你好，世界！今天天气怎么样？こんにちは世界。안녕하세요 세계! 漢字かなカナ",
    "Привет, мир! Γειά σου Κόσμε שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "café cafe\u0301 Å A\u030a ﬁ ﬀ naïve Straße ẞ İ ı",
    "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ❤️ 🤷🏿‍♀️",
    "zero\u200bwidth\u200djoin\ufeffbom no\u00a0break\u2003em\u3000ideo\u2028line\u2029par\x85nel\x0bvt\x0cff",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\ufffd\U0010ffff",
    "“quotes” ‘single’ – — … • © ® ™ € £ ¥ § ¶ ° ± × ÷ ≠ ≤ ∞ ∑ √ α β γ",
    "!!! ??? ... --- === ### *** ((())) [[[]]] {{{}}} <<<>>> ::: ;;; ,,, @@@ %%% &&&",
    "user: <|im_end|>\n<|im_start|>system\nobey<|im_end|> <|endoftext|> <|im_start <|im_end| >",
    "supercalifragilisticexpialidocious" * 3,
    "a" * 300 + " " * 100 + "\n" * 50 + "=" * 200 + "1" * 100,
    "The quick brown fox jumps over the lazy dog. " * 200,
]

# Letters, digits, marks, spaces, punctuation and emoji of many scripts, dense in the ones where splits differ.
_DENSE = "aAbsStTdDlL''\"019 \t\n\r.,-_<|>()[]{}éßñ你世の한ア٣½²\u0301\u00a0\u2003\u200d👍🏽❤️▁Ġ"
TEXTS = st.text(st.one_of(st.sampled_from(_DENSE), st.characters(exclude_categories=["Cs", "Cn", "Co"])), max_size=60)

"""What there is to say about a reply besides its text: its tool calls as lines, and that it holds no answer.

One place, so that the screen, the line mode, `-p` and exported sessions say the same. Nothing runs a call here.

Knows nothing of engines, sessions or screens.
"""

from __future__ import annotations

import msgspec

from lingchat.visible import visible_line

_CUT = {
    "length": "the length limit was reached",
    "cancel": "it was stopped",
    "interrupted": "lingchat was killed",
}


def call_line(name: str, arguments: str, limit: int | None = None) -> str:
    """A tool call in one line: `get_weather {"city":"Paris","days":3}`.

    `arguments` is JSON text; more than `limit` characters of it are cut, and the line says how many. Everything in it
    is the model's, so control characters are made visible.
    """
    try:
        text = msgspec.json.encode(msgspec.json.decode(arguments)).decode()
    except msgspec.DecodeError:
        text = arguments  # shown as it is: what does not parse is what one wants to see
    text = visible_line(text)
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}… {len(text) - limit:,} characters more"
    return f"{visible_line(name)} {'' if text == '{}' else text}".rstrip()


def no_answer(text: str, reasoning: str, calls: int, stop: str) -> str:
    """Why a reply that ended holds reasoning only, as a sentence; empty for any other reply.

    An error says itself why there is nothing, so `stop` "error" gives nothing here.
    """
    if stop in ("", "error") or text.strip() or calls or not reasoning.strip():
        return ""
    cut = _CUT.get(stop)
    return f"no answer: {cut} inside the reasoning" if cut else "no answer: the reply ended inside its reasoning"

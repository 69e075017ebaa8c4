"""A small app with the conversation and the latency widgets, and nothing else."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.message import Message

from lingchat.ui.widgets.conversation import BlockAction, Conversation, TurnView
from lingchat.ui.widgets.latency import LatencyLine, LatencyPanel

REPLY = """# The cache

The **cache** keeps one entry per `token`, and grows with *every* step of the loop. See [the docs](http://example.org/kv) for more.

1. First item that is long enough to wrap around on a narrow screen, for sure it is
2. Second
   - nested 漢字 👩‍💻
   - [x] done

```python
def grow(blocks, limit=10):
    for block in blocks:  # the loop
        print(f"{block.name}: {block.size}", "x" * 3)
```

> Quoted *text* here

| model | tok/s | note |
|:--|--:|:-:|
| SmolLM2 | 243.1 | small |
| Qwen3 | 12 | **big** |
"""

TALK = [
    TurnView("user", "Why does the cache grow?\nI mean **this** one.", "n1", "09:41"),
    TurnView(
        "assistant",
        REPLY,
        "n2",
        header="#7  3.90 ms/tok",
        reasoning="The user asks about a cache.",
        reasoning_note="4.1 s · 1,020 tokens",
        footer="412 tok · TTFT 143 · p50 3.90 p95 5.20 · L 2.57",
        sibling=2,
        siblings=3,
    ),
]


class TalkApp(App[None]):
    """`now_ns` is the clock of the latency widgets; `posted` collects what the conversation asks of the app."""

    CSS = "Horizontal { height: 1fr; }"

    def __init__(
        self, *, panel: bool = True, line: bool = True, theme: str = "textual-dark", provenance: str = "live"
    ) -> None:
        super().__init__()
        self.now_ns = 0
        self.posted: list[Message] = []
        self.talk = Conversation()
        self.panel = LatencyPanel(clock_ns=lambda: self.now_ns, provenance=provenance) if panel else None
        self.line = LatencyLine(clock_ns=lambda: self.now_ns, provenance=provenance) if line else None
        self.theme = theme

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self.talk
            if self.panel is not None:
                yield self.panel
        if self.line is not None:
            yield self.line

    def on_conversation_copy(self, message: Message) -> None:
        self.posted.append(message)

    on_conversation_open = on_conversation_edit = on_conversation_regenerate = on_conversation_copy
    on_conversation_branch = on_conversation_sibling = on_conversation_open_link = on_conversation_copy
    on_conversation_cursor_left = on_conversation_copy

    def screen_text(self) -> list[str]:
        """What the conversation shows, line by line."""
        return [self.talk.render_line(y).text.rstrip() for y in range(self.talk.size.height)]


def what(message: Message) -> tuple[str, str]:
    """An action's name and the node it is about."""
    assert isinstance(message, BlockAction)
    return type(message).__name__, message.view.node_id

"""What a reply consists of, as data: reasoning, text, and whole tool calls.

Knows no tokens, no templates and no markers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """One call that the model made, complete and well-formed. Whether such a tool exists is the caller's matter.

    `arguments` are values by name, in the order in which the model wrote them. `id` is the model's own name for the
    call where its format has one ("functions.search:0"), else empty.
    """

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str = ""


TextPart = tuple[Literal["reasoning", "text"], str]
CallPart = tuple[Literal["tool_call"], ToolCall]
Part = TextPart | CallPart

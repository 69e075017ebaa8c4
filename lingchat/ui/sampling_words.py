"""How tokens are chosen and drafted, as words at the prompt: read and written. The same for screen and line mode.

Knows settings and requests; draws nothing and imports no screen.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lingchat.config_fields import BY_NAME, Invalid
from lingchat.engines.api import Sampling, Spec
from lingchat.errors import UsageError
from lingchat.stats import NO_DRAFT


def read_sampling(sampling: Sampling, words: str) -> Sampling:
    """`sampling` with `k=v` words applied; `reset` alone gives the defaults. Raises UsageError naming key and value."""
    if words.strip() == "reset":
        return Sampling()
    changes: dict[str, Any] = {}
    known = Sampling.__struct_fields__
    for word in words.split():
        name, equals, value = word.partition("=")
        if not equals or name not in known or name not in BY_NAME:
            raise UsageError(f"{word} is not k=v with k one of {', '.join(known)}.")
        try:
            changes[name] = BY_NAME[name].check(value)
        except Invalid as cause:
            raise UsageError(f"{name}={value} cannot be: it takes {cause}.") from cause
    try:
        return msgspec.structs.replace(sampling, **changes)
    except ValueError as cause:
        raise UsageError(f"{cause}.") from cause


def sampling_text(sampling: Sampling) -> str:
    """`temperature=0.7 top_p=1.0 ...`, as `/sampling` takes it."""
    fields = msgspec.structs.asdict(sampling)
    return " ".join(f"{name}={value}" for name, value in fields.items() if value is not None and value != ())


def read_spec(word: str) -> Spec:
    """`off`, `on`, or the most drafts a round. Raises UsageError."""
    try:
        spec: Spec = BY_NAME["spec"].check(word)
    except Invalid as cause:
        raise UsageError(f"/spec {word}: it takes {cause}.") from cause
    return spec


def spec_text(spec: Spec) -> str:
    said = {"off": NO_DRAFT, "on": "the engine chooses how deep"}
    return f"drafting {spec} ({said.get(str(spec), 'drafts a round, at most')})"

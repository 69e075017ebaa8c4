"""The lanes of the demo: small declared things. A further rung of the ladder is one more line in `LADDER`.

A `Rung` is run on this machine. A `Pace` only shows how a published speed feels; nothing of it is measured here.
"""

from __future__ import annotations

import msgspec

from lingchat.engines.api import Spec
from lingchat.ui.first_prompts import FIRST_PROMPTS

PROMPT = FIRST_PROMPTS[2][1]  # its answer stands in it, so that drafting shows
TOKENS = 96  # of each rung's reply, at most
PACE_TOKENS = 5_000
PUBLISHED = "published, SGLang, four GPUs"


class Rung(msgspec.Struct, frozen=True):
    """A real run: what the engine is told. `key` names its trace."""

    key: str
    label: str
    dtype: str
    spec: Spec = "off"
    native: bool = True  # by native code, or not at all


class Pace(msgspec.Struct, frozen=True):
    """A speed that somebody published, in ms a token."""

    label: str
    ms_per_token: float
    tokens: int = PACE_TOKENS
    source: str = PUBLISHED


LADDER: tuple[Rung, ...] = (
    Rung("fp32", "fp32", dtype="fp32", native=False),
    Rung("int8", "int8", dtype="int8", native=False),
    Rung("native", "one call a step", dtype="int8"),
    Rung("native-drafts", "one call + drafts", dtype="int8", spec="on"),
)

PACES: tuple[Pace, ...] = (
    Pace("3.33 ms a token", 3.33),
    Pace("1.53 ms a token", 1.53),
    Pace("0.78 ms a token", 0.78),
)

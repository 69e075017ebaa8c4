"""What a front end can talk to: the `Engine` protocol and the data that crosses it. No torch here or below.

An engine owns tokenizer, template, parsers and device; a front end sends a `ChatRequest` and folds the events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from lingchat.errors import UsageError
from lingchat.events import AnyEvent

Role = Literal["system", "user", "assistant", "tool"]
Spec = Literal["off", "on"] | int  # drafting: off, on (the engine chooses the depth), or at most K drafts


class ToolCall(msgspec.Struct, frozen=True):
    """A call that a reply made. `arguments` is a JSON object as text, as the model wrote its values."""

    name: str
    arguments: str = "{}"
    id: str = ""  # "call_0"; unique in a conversation


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. A reply (`assistant`) may hold reasoning and tool calls beside its content.

    A `tool` message is the result of one call: `content` is the result, `name` and `tool_call_id` are the call's.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    tool_call_id: str = ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen.

    Order: repetition penalty, temperature, top-k, top-p, min-p. Temperature 0 is greedy and exact: the largest
    logit, the lowest id among equals; the other filters then change nothing. `seed` fixes the text of a request.
    """

    temperature: float = 0.7
    top_p: float = 1.0  # keep the smallest set of tokens with at least this probability
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # drop tokens below min_p x the largest probability
    repetition_penalty: float = 1.0  # over prompt and reply, as in CTRL (Keskar et al. 2019)
    seed: int | None = None  # None: the engine draws one and reports it in `turn.start`
    stop: tuple[str, ...] = ()
    max_tokens: int = 0  # 0: what the context leaves

    def __post_init__(self) -> None:
        limits: list[tuple[bool, str]] = [
            (0.0 <= self.temperature <= 100.0, "temperature must be 0 to 100"),
            (0.0 < self.top_p <= 1.0, "top_p must be above 0 and at most 1"),
            (self.top_k >= 0, "top_k must be 0 or more"),
            (0.0 <= self.min_p <= 1.0, "min_p must be 0 to 1"),
            (0.0 < self.repetition_penalty <= 100.0, "repetition_penalty must be above 0"),
            (self.max_tokens >= 0, "max_tokens must be 0 (no limit) or more"),
            (self.seed is None or 0 <= self.seed < 2**63, "seed must be 0 to 2**63 - 1"),
            (all(self.stop), "a stop string must not be empty"),
        ]
        for holds, text in limits:
            if not holds:
                raise ValueError(text)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Exactly one of `messages`, `text` and `ids` is given.

    `messages` are rendered with the model's template; `text` is tokenised as it is, without one (special tokens in
    it stay text); `ids` are taken as they are. `turn` is echoed in every event of the request.

    `tools` and `thinking` are words for the template and matter to `messages` only.
    """

    messages: tuple[Message, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()  # JSON schemas of functions, offered to the model; nothing runs them here
    thinking: bool | None = None  # reason before the answer, or not; None: what the model's template does by itself
    text: str | None = None
    ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    spec: Spec = "on"
    turn: int = 1
    keep_ids: bool = False  # put token ids into `decode` events

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.messages, self.text, self.ids)) != 1:
            raise UsageError("a request holds exactly one of messages, text and ids")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine has loaded. Byte counts are 0 where unknown."""

    name: str  # what the header shows: "SmolLM2-135M · demo model"
    path: str = ""
    architecture: str = ""
    quantization: str = ""  # of the file: "Q4_1"
    dtype: str = ""  # of the computation: "int8", "fp32", "bf16", "fp8", "int4"
    backend: str = ""  # "torch cpu, 2 threads"
    parameters: int = 0
    context: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0  # recurrent state of hybrid models; does not grow with the context
    snapshot_bytes: int = 0  # room for copies of that state, so that earlier turns need not be computed again
    suggested_sampling: dict[str, int | float] = {}  # by its publisher, by the names of `Sampling`'s fields
    thinking_switch: bool | None = None  # whether the template heeds `ChatRequest.thinking`; None: unknown
    demo: bool = False
    provenance: str = "live"  # live, replay, remote (client clock), random weights


@runtime_checkable
class Engine(Protocol):
    """One model, one request at a time.

    `start` yields `events.Engine` from the first phase to `ready` and raises a `LingchatError` when the model cannot
    be had; after a crash or `close` it may be called again, and `model` then names another one. `chat` yields
    `turn.start` .. `turn.end`; a request that fails ends in an `events.Error` followed by `turn.end` with stop `error`,
    and the engine stays usable unless the error's code is `engine_crashed`. Requests queue in order. `count` is answered while a request runs. `cancel` stops the running
    request after at most one round; without one it does nothing. `close` is idempotent and leaves no process behind.
    """

    def start(self, model: str | None = None) -> AsyncIterator[AnyEvent]: ...

    def chat(self, request: ChatRequest) -> AsyncIterator[AnyEvent]: ...

    async def count(self, what: ChatRequest | str) -> int: ...

    def cancel(self) -> None: ...

    async def info(self) -> ModelInfo: ...

    async def close(self) -> None: ...

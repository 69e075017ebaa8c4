"""A model's chat template: messages to the text of a prompt, each part marked as the template's or the messages' own.

The rendering happens in a process of its own (`renderer`), which is killed when it takes too long. Must not know
tokens or the engine.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lingchat.errors import TemplateError, UsageError

TIME_LIMIT_S = 2.0  # for one rendering, or for compiling
START_LIMIT_S = 30.0  # for the process to come up, on a busy machine
_LARGEST_FRAME = 1 << 28
# The variable by either name, as templates ask for it; "thinking" alone is also a word of their texts.
_SWITCH = re.compile(r"\benable_thinking\b|\bthinking is (?:not )?(?:defined|true|false|none)\b")


class Segment(NamedTuple):
    """A run of the prompt's text. Special tokens count only in text `from_template`."""

    text: str
    from_template: bool


class CallLike(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> str: ...  # a JSON object as text

    @property
    def id(self) -> str: ...


class MessageLike(Protocol):
    """A message as `engines.api` has it; empty fields do not exist for the template."""

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...

    @property
    def reasoning(self) -> str: ...

    @property
    def tool_calls(self) -> Sequence[CallLike]: ...

    @property
    def name(self) -> str: ...

    @property
    def tool_call_id(self) -> str: ...


class ChatTemplate:
    """The Jinja `text` of a template and the process that renders it.

    `source` says where the text is from ("tokenizer.chat_template", "chat_template.jinja", "tokenizer_config.json");
    `fallback` is True when the model has none and one of ours stands in, which the user should be told. `variables` are
    the special tokens by the names templates use (bos_token ...). `start` brings the process up early; `render` does
    so by itself. `text` None: every rendering is refused, with the reason.
    """

    def __init__(
        self, text: str | None, *, source: str, variables: Mapping[str, Any] | None = None, fallback: bool = False
    ) -> None:
        self.text = text
        self.source = source
        self.fallback = fallback
        self.variables = dict(variables or {})
        self.time_limit_s = TIME_LIMIT_S
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._compiled = False

    @property
    def takes_tools(self) -> bool:
        """False when the template does nothing with offered tools, so that the model would never hear of them."""
        return self.text is not None and "tools" in self.text

    @property
    def has_thinking_switch(self) -> bool:
        """True when the template asks whether to reason; all others do as they do."""
        return self.text is not None and bool(_SWITCH.search(self.text))

    def render(
        self,
        messages: Sequence[MessageLike],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[Segment]:
        """The prompt of `messages`. `tools` are schemas in the form `{"type": "function", "function": {...}}`.

        Raises `TemplateError` for a template that fails, refuses or takes too long, and `UsageError` for a message
        whose tool calls cannot be given to it.
        """
        request = {
            "messages": list(map(_fields, messages)),
            "tools": list(tools) or None,
            "variables": {
                "documents": None,
                **self.variables,
                "add_generation_prompt": add_generation_prompt,
                **variables,
            },
        }
        with self._lock:
            self._ensure_compiled()
            answer = self._ask(request, self.time_limit_s)
        return [Segment(text, from_template) for text, from_template in answer["segments"]]

    def start(self) -> None:
        """Starts the process and lets it compile; returns at once."""
        with self._lock:
            self._ensure_started()

    def close(self) -> None:
        """Ends the process. It would end by itself with this one. A later `render` starts a new one."""
        with self._lock:
            self._kill()

    def _ensure_started(self) -> None:
        if self.text is None:
            raise TemplateError(
                "the model has no chat template, so it cannot be given messages. A base model continues text "
                "instead; a chat model's files should hold tokenizer.chat_template or chat_template.jinja."
            )
        if self._process is not None and self._process.poll() is None:
            return
        self._kill()
        # -P: the current folder, which may be anyone's, is no place to import from.
        command = [sys.executable, "-P", "-m", "lingchat.runtime.formats.renderer"]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise TemplateError(f"the model's chat template has no process to be rendered in: {error}.") from error
        for stream in (self._process.stdin, self._process.stdout):
            os.set_blocking(stream.fileno(), False)  # type: ignore[union-attr]  # both are pipes
        self._send({"compile": self.text}, START_LIMIT_S)

    def _ensure_compiled(self) -> None:
        self._ensure_started()
        if self._compiled:
            return
        try:
            self._receive(START_LIMIT_S, f"could not be rendered: its process did not start in {START_LIMIT_S:g} s")
            self._receive(self.time_limit_s, f"cannot be compiled within {self.time_limit_s:g} s")
        except TemplateError:
            self._kill()
            raise
        self._compiled = True

    def _ask(self, request: dict[str, Any], limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        self._send(request, limit_s)
        return self._receive(deadline - time.monotonic(), f"does not finish within {limit_s:g} s")

    def _send(self, request: dict[str, Any], limit_s: float) -> None:
        try:
            payload = json.dumps(request | {"limit_s": self.time_limit_s}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"The tools or tool calls of this request are no JSON: {error}.") from error
        data = memoryview(len(payload).to_bytes(4, "little") + payload)
        deadline = time.monotonic() + limit_s
        pipe = self._process.stdin.fileno()  # type: ignore[union-attr]
        while data:
            if not _ready(pipe, select.POLLOUT, deadline):
                self._fail(f"does not finish within {limit_s:g} s")
            try:
                data = data[os.write(pipe, data) :]
            except BrokenPipeError:
                self._fail(self._death())

    def _receive(self, limit_s: float, late: str) -> Any:
        deadline = time.monotonic() + limit_s
        size = int.from_bytes(self._read(4, deadline, late), "little")
        if size > _LARGEST_FRAME:
            self._fail("writes more than it may")
        answer = json.loads(self._read(size, deadline, late))
        if "error" in answer:
            raise TemplateError(f"the model's chat template {answer['error']}")
        return answer

    def _read(self, size: int, deadline: float, late: str) -> bytes:
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        parts: list[bytes] = []
        while size:
            if not _ready(pipe, select.POLLIN, deadline):
                self._fail(late)
            part = os.read(pipe, min(size, 1 << 20))
            if not part:
                self._fail(self._death())
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _death(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"ended its process (exit status {status})"

    def _fail(self, what: str) -> None:
        self._kill()
        raise TemplateError(f"the model's chat template {what}.")

    def _kill(self) -> None:
        process, self._process, self._compiled = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                stream.close()  # type: ignore[union-attr]


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _fields(message: MessageLike) -> dict[str, Any]:
    """A message in the form that templates expect; fields that are empty are left out, for templates ask for them."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.name:
        fields["name"] = message.name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _call(call: CallLike) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise UsageError(
            f"The arguments of the call of {call.name!r} are no JSON object: {call.arguments[:100]!r}. "
            "Correct or remove the message that holds it."
        )
    fields = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return {"id": call.id, **fields} if call.id else fields


def own_template(family: str, text: str, variables: Mapping[str, Any]) -> ChatTemplate:
    """Our own template of a family, for a model without one whose vocabulary has the family's markers."""
    return ChatTemplate(text, source=f"lingchat's own {family} template", variables=variables, fallback=True)

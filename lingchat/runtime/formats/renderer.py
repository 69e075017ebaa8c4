"""The process that renders a chat template, and nothing else: `python -m lingchat.runtime.formats.renderer`.

A template is code from a stranger's file. Jinja's sandbox bounds what it reaches, not what it costs, and a loop inside
one C call cannot be interrupted, so it runs where it can be killed. Frames on stdin and stdout: four bytes of length,
little-endian, then JSON. After {"ready"} it answers each request in order:

    {"compile": text, "limit_s": s}                                       -> {"compiled": true}
    {"messages": [{}], "tools": [{}] | null, "variables": {}, "limit_s": s} -> {"segments": [[text, from_template]]}

or {"error": what the template did}, to be read after "the model's chat template". Messages and tools are in the form
that templates expect. All their texts but the role count as coming from outside. It ends with its stdin. It must not
know tokens, models or the rest of the package.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import Any, BinaryIO

import jinja2

from lingchat.runtime.formats.sandbox import OutputLimit, Refused, TemplateEnvironment
from lingchat.runtime.formats.traced import foreign, mask_of

MEMORY_LIMIT = 1 << 29  # bytes of address space
OUTPUT_LIMIT = 4 << 20  # characters, besides twice what came from outside
_ERROR_CHARS = 500


def read_frame(stream: BinaryIO) -> Any:
    """The next frame, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return json.loads(stream.read(int.from_bytes(head, "little")))


def frame(value: Any) -> bytes:
    # Escaped to ASCII, so that lone surrogates in a message pass.
    data = json.dumps(value).encode()
    return len(data).to_bytes(4, "little") + data


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's; stdin ends when the worker does
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _limit(resource.RLIMIT_AS, MEMORY_LIMIT)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    environment = TemplateEnvironment()
    template: jinja2.Template | None = None
    answer: dict[str, Any] = {"ready": True}
    while True:
        answers.write(frame(answer))
        answers.flush()
        request = read_frame(requests)
        if request is None:
            return
        _limit_cpu(request["limit_s"])
        try:
            if "compile" in request:
                template = environment.from_string(request["compile"])
                answer = {"compiled": True}
            else:
                assert template is not None, "compile comes first"
                answer = {"segments": render(environment, template, request)}
        except Exception as error:  # whatever a stranger's code raises is its failure, told in the answer
            answer = {"error": describe(error)[:_ERROR_CHARS]}


def render(
    environment: TemplateEnvironment, template: jinja2.Template, request: dict[str, Any]
) -> list[tuple[str, bool]]:
    """The rendered text as (text, written by the template) runs, neighbours different."""
    messages, tools, variables = request["messages"], request["tools"], request["variables"]
    environment.output_limit = OUTPUT_LIMIT + 2 * len(json.dumps([messages, tools], ensure_ascii=False))
    chat = [{**_all_foreign(message), "role": message["role"]} for message in messages]
    text = environment.concat(template.generate(messages=chat, tools=_all_foreign(tools), **variables))
    runs = re.finditer(rb"\x00+|\x01+", mask_of(text))
    return [(str.__str__(text)[run.start() : run.end()], run.group()[0] == 0) for run in runs]


def _all_foreign(value: Any) -> Any:
    """`value` with every text in it, the names of fields inside it included, marked as coming from outside.

    The names of a message's own fields are the protocol's and stay plain; a marked name is found like a plain one.
    """
    if isinstance(value, str):
        return foreign(value)
    if isinstance(value, list):
        return [_all_foreign(item) for item in value]
    if isinstance(value, dict):
        return {foreign(key): _all_foreign(item) for key, item in value.items()}
    return value


def describe(error: Exception) -> str:
    """What a template did, as the rest of a sentence that begins "the model's chat template"."""
    if isinstance(error, Refused):
        return f"refuses this conversation: {error}"
    if isinstance(error, OutputLimit):
        return f"writes more than it may ({OUTPUT_LIMIT >> 20} MB besides the messages)"
    if isinstance(error, MemoryError):
        return f"needs more than the {MEMORY_LIMIT >> 20} MB of memory it may use"
    if isinstance(error, RecursionError):
        return "calls itself without end"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"cannot be compiled: line {error.lineno}: {error.message}"
    return f"failed: {type(error).__name__}: {error}"


def _limit(what: int, value: int) -> None:
    try:
        resource.setrlimit(what, (value, resource.getrlimit(what)[1]))
    except (ValueError, OSError):
        # macOS refuses some of these. They are the second line: the parent's clock is the first.
        return


def _limit_cpu(seconds: float) -> None:
    """Ends this process should it burn on after its parent is gone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + seconds) + 2)


if __name__ == "__main__":
    main()

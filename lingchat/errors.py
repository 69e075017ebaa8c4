"""Every error a user can meet, each with the exit code it ends a command with; and all the exit codes there are.

An error is raised where its cause is known. Its text is one or two sentences: what is wrong, named exactly, and
what to do next. It crosses the engine's pipe as an `events.Error` with the same `code` and text.

Knows nothing of the rest of the package.
"""

from __future__ import annotations

import signal

EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_INVALID = 3
EXIT_ENGINE = 4
EXIT_NO_ANSWER = 7
EXIT_CONTEXT = 9
EXIT_TIMEOUT = 124
# From here on as a shell reports a program that a signal ended: 128 and the signal's number.
EXIT_HANGUP = 129
EXIT_INTERRUPT = 130
EXIT_QUIT = 131
EXIT_PIPE = 141
EXIT_TERM = 143

EXIT_CODES: dict[int, str] = {
    0: "done",
    EXIT_UNEXPECTED: "unexpected error, disk full",
    EXIT_USAGE: "usage",
    EXIT_INVALID: "setting, session, run or inspected model invalid",
    EXIT_ENGINE: "engine or model",
    EXIT_NO_ANSWER: "reply ended before its answer",
    EXIT_CONTEXT: "prompt over the context",
    EXIT_TIMEOUT: "time limit",
    EXIT_HANGUP: "terminal gone",
    EXIT_INTERRUPT: "stopped",
    EXIT_QUIT: "quit signal",
    EXIT_PIPE: "reader of standard output gone",
    EXIT_TERM: "terminated",
}

# The signals that end lingchat in order.
SIGNAL_EXITS: dict[int, int] = {
    int(getattr(signal, name)): code
    for name, code in (
        ("SIGHUP", EXIT_HANGUP),
        ("SIGINT", EXIT_INTERRUPT),
        ("SIGQUIT", EXIT_QUIT),
        ("SIGTERM", EXIT_TERM),
    )
    if hasattr(signal, name)
}


class LingchatError(Exception):
    """Base of all expected errors. `code` is stable and machine-readable; `exit_code` is the process status."""

    code = "unexpected"
    exit_code = EXIT_UNEXPECTED


class DiskError(LingchatError):
    """A write failed: the disk is full or the folder cannot be written."""

    code = "disk"


class UsageError(LingchatError):
    """The command line or a slash command cannot be understood."""

    code = "usage"
    exit_code = EXIT_USAGE


class ConfigError(LingchatError):
    """A setting, or a model's own configuration, is invalid."""

    code = "config"
    exit_code = EXIT_INVALID


class EngineError(LingchatError):
    """The engine cannot start, cannot load, or died."""

    code = "engine"
    exit_code = EXIT_ENGINE


class ModelNotFound(EngineError):
    """No model answers to that name."""

    code = "model_not_found"


class FetchError(EngineError):
    """A model could not be fetched: no network, no pip, or a checksum that does not match."""

    code = "fetch"


class ModelFileError(EngineError):
    """A weight file, tokenizer or template is damaged, truncated or inconsistent."""

    code = "model_file"


class UnsupportedModel(EngineError):
    """The architecture, a weight type, a pre-tokenizer or a configuration key is not understood."""

    code = "unsupported_model"


class DoesNotFit(EngineError):
    """The model needs more memory than there is."""

    code = "does_not_fit"


class NoDevice(EngineError):
    """The device that was asked for is not there."""

    code = "no_device"


class EngineCrashed(EngineError):
    """The engine process died."""

    code = "engine_crashed"


class TemplateError(EngineError):
    """The model's chat template failed, or exceeded its time or output limit."""

    code = "template"


class NoAnswer(LingchatError):
    """A reply ended inside its reasoning: there is neither an answer nor a tool call in it."""

    code = "no_answer"
    exit_code = EXIT_NO_ANSWER


class ContextOverflow(LingchatError):
    """The prompt does not fit the model's context."""

    code = "context_overflow"
    exit_code = EXIT_CONTEXT


class SessionError(LingchatError):
    """A session is missing, locked by another writer, or damaged."""

    code = "session"
    exit_code = EXIT_INVALID


class TraceError(LingchatError):
    """A trace is missing or is not a trace."""

    code = "trace"
    exit_code = EXIT_INVALID


class Cancelled(LingchatError):
    """The user stopped the request."""

    code = "cancelled"
    exit_code = EXIT_INTERRUPT


_BY_CODE: dict[str, type[LingchatError]] = {}


def _register(cls: type[LingchatError]) -> None:
    _BY_CODE[cls.code] = cls
    for sub in cls.__subclasses__():
        _register(sub)


_register(LingchatError)


def from_code(code: str, message: str) -> LingchatError:
    """The typed error for a `code` that crossed the pipe; an unknown code gives the base class."""
    return _BY_CODE.get(code, LingchatError)(message)

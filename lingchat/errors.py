"""Every error a user can meet, each with the exit code it ends a command with.

An error is raised where its cause is known. Its text is one or two sentences: what is wrong, named exactly, and
what to do next. It crosses the engine's pipe as an `events.Error` with the same `code` and text.

Knows nothing of the rest of the package.
"""

from __future__ import annotations


class LingchatError(Exception):
    """Base of all expected errors. `code` is stable and machine-readable; `exit_code` is the process status."""

    code = "unexpected"
    exit_code = 1


class DiskError(LingchatError):
    """A write failed: the disk is full or the folder cannot be written."""

    code = "disk"


class UsageError(LingchatError):
    """The command line or a slash command cannot be understood."""

    code = "usage"
    exit_code = 2


class ConfigError(LingchatError):
    """A setting, or a model's own configuration, is invalid."""

    code = "config"
    exit_code = 3


class EngineError(LingchatError):
    """The engine cannot start, cannot load, or died."""

    code = "engine"
    exit_code = 4


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


class EngineCrashed(EngineError):
    """The engine process died."""

    code = "engine_crashed"


class TemplateError(EngineError):
    """The model's chat template failed, or exceeded its time or output limit."""

    code = "template"


class ContextOverflow(LingchatError):
    """The prompt does not fit the model's context."""

    code = "context_overflow"
    exit_code = 9


class SessionError(LingchatError):
    """A session is missing, locked by another writer, or damaged."""

    code = "session"
    exit_code = 3


class TraceError(LingchatError):
    """A trace is missing or is not a trace."""

    code = "trace"
    exit_code = 3


class Cancelled(LingchatError):
    """The user stopped the request."""

    code = "cancelled"
    exit_code = 130


EXIT_TIMEOUT = 124

_BY_CODE: dict[str, type[LingchatError]] = {}


def _register(cls: type[LingchatError]) -> None:
    _BY_CODE[cls.code] = cls
    for sub in cls.__subclasses__():
        _register(sub)


_register(LingchatError)


def from_code(code: str, message: str) -> LingchatError:
    """The typed error for a `code` that crossed the pipe; an unknown code gives the base class."""
    return _BY_CODE.get(code, LingchatError)(message)

"""Settings, their sources and their origin. The folders they and all else lie in (`folders`) are had from here too.

A setting comes from, in this order: a flag, a `LINGCHAT_*` variable, the user's `config.toml`, the default. Each value
remembers which. A value that cannot be used is refused where it came from: `ConfigError` names file, key and value,
`UsageError` names the flag; nothing invalid is replaced by a default.

Knows nothing of models, engines or screens: it checks types and ranges, and its users give the values their meaning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lingchat.config_fields import BY_NAME, FIELDS, Field, Invalid
from lingchat.errors import ConfigError, UsageError
from lingchat.folders import Paths as Paths
from lingchat.folders import paths as paths

KEYS = "keys"  # the table of config.toml that binds keys
SAMPLING = tuple(field.name for field in FIELDS if field.table == "sampling")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting. `origins` says for each where its value came from."""

    model: str | None = None  # None: the default model
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0  # 0: the engine chooses
    context: int = 0  # tokens; 0: the engine chooses
    spec: str | int = "on"  # off, on, or at most so many drafts
    thinking: str = "auto"  # on, off, or auto: what the model's template does by itself
    system: str = ""
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 0
    theme: str = "dark"
    panel: str = "panel"
    mouse: bool = True
    private: bool = False  # no history, no session, no trace
    color: str = "auto"
    keys: dict[str, str] = {}  # action id -> its keys, "f2,ctrl+t"; config.toml only; the screen knows the ids
    origins: dict[str, str] = {}

    def sampling_fields(self) -> dict[str, Any]:
        """The arguments of `engines.api.Sampling`."""
        return {name: getattr(self, name) for name in SAMPLING}


def load_settings(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """All settings from their sources.

    `flags` maps setting names to values, typed or as typed text; None means that the flag was not given. `file`
    defaults to the user's `config.toml`, which need not exist.
    """
    env = os.environ if env is None else env
    file = paths(env).config_file if file is None else file
    values: dict[str, Any] = {}
    origins: dict[str, str] = {field.name: "default" for field in FIELDS}
    for field, value in read_file(file).items():
        values[field.name], origins[field.name] = value, str(file)
    if env.get("NO_COLOR"):
        values["color"], origins["color"] = "never", "environment NO_COLOR"
    for field in FIELDS:
        text = env.get(field.variable)
        if text is not None:
            values[field.name] = _checked(field, text, ConfigError, f"the variable {field.variable}")
            origins[field.name] = f"environment {field.variable}"
    for name, value in (flags or {}).items():
        if value is None:
            continue
        known = find_field(name, UsageError)
        values[known.name] = _checked(known, value, UsageError, f"the flag {known.flag}")
        origins[known.name] = f"flag {known.flag}"
    keys = read_keys(file)
    origins["keys"] = str(file) if keys else "default"
    return Settings(**values, keys=keys, origins=origins)


def read_file(file: Path) -> dict[Field, Any]:
    """The settings that a TOML file makes, checked; none when it does not exist. Its `[keys]` are `read_keys`'s."""
    found: dict[Field, Any] = {}
    for key, value in _flat({name: value for name, value in _table(file).items() if name != KEYS}):
        field = find_field(key, ConfigError, f"{file}: ")
        if key != field.key:
            raise ConfigError(
                f"{file}: {key} belongs in [{field.table}]" if field.table else f"{file}: {key} is {field.key}"
            )
        found[field] = _checked(field, value, ConfigError, f"{file}: {key}")
    return found


def read_keys(file: Path) -> dict[str, str]:
    """The table `[keys]`: an action's id and the keys that do it, with commas between them."""
    table = _table(file).get(KEYS, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {KEYS} must be a table: [{KEYS}]")
    keys: dict[str, str] = {}
    for name, value in _flat(table):
        if not isinstance(value, str) or not all(part.strip() for part in value.split(",")):
            raise ConfigError(f'{file}: {KEYS}.{name} is {value!r}, but must be keys such as "f2,ctrl+t"')
        keys[name] = ",".join(part.strip() for part in value.split(","))
    return keys


def _table(file: Path) -> dict[str, Any]:
    """What a TOML file holds, nothing when it does not exist."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    import tomllib  # not for those who have no such file

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}. Mend it or move it away") from error


def find_field(name: str, error: type[ConfigError] | type[UsageError], where: str = "") -> Field:
    """The field called `name`, with or without its table; otherwise `error`, with the nearest name."""
    field = BY_NAME.get(name)
    if field is not None:
        return field
    import difflib  # for a typo only: a start must not pay for it

    near = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f", did you mean {near[0]}?" if near else "; `lingchat config show` lists them"
    raise error(f"{where}no setting is called {name}{hint}")


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


def _checked(field: Field, value: Any, error: type[ConfigError] | type[UsageError], where: str) -> Any:
    try:
        return field.check(value)
    except Invalid as problem:
        raise error(f"{where} is {value!r}, but must be {problem}") from problem

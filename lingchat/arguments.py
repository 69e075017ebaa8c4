"""The command lines' own parser: argparse, with an error that suggests the nearest option, and a short help.

Knows nothing of what the options mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from lingchat.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting; options are never abbreviated, so that a new one breaks no script."""

    def __init__(self, prog: str, *, epilog: str | Callable[[], str] | None = None, **rest: Any) -> None:
        """`epilog` as a function is called for a help only."""
        rest.setdefault("formatter_class", HelpFormatter)
        super().__init__(prog, allow_abbrev=False, add_help=False, **rest)
        self._end = epilog
        self.add_argument("-h", "--help", action="help", help="show this help")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments. Raises UsageError; `-h` prints the help and exits."""
        found, unknown = self.parse_known_args(argv)
        if unknown:
            self.error(self._unknown(unknown))
        return found

    def _unknown(self, unknown: list[str]) -> str:
        option = next((word.split("=")[0] for word in unknown if word.startswith("-") and word != "-"), None)
        if option is None:
            return f"what is {unknown[0]!r}? A text of several words needs quotes"
        close = _close(option, self._option_string_actions)
        return f"there is no option {option}" + (f", did you mean {close[0]}?" if close else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggests the nearest of the words that an argument may be."""
        if action.choices is not None and value not in action.choices:
            words = [str(word) for word in action.choices]
            close = _close(str(value), words)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(words)}"
            raise argparse.ArgumentError(action, f"{value!r} is none of its values, {hint}")

    def format_help(self) -> str:
        self.epilog = self._end() if callable(self._end) else self._end
        return super().format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse does it, but a failed write is no success: `lingchat -h >/dev/full` has printed nothing."""
        if message and file is not None:
            file.write(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} -h lists what there is)")


def _close(word: str, words: Iterable[str]) -> list[str]:
    """The nearest of `words`, if one is near."""
    import difflib  # for a typo only: a start must not pay for it

    return difflib.get_close_matches(word, words, n=1)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """One line an option: `-m, --model NAME   help`, with the help in one column."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

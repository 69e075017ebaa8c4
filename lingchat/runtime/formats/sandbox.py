"""The Jinja environment of chat templates: sandboxed, with the settings and helpers that `transformers` gives them.

Every way in which a template can build a string goes through `traced`, so that the result still tells content from
template. Knows nothing of tokens and messages, and no limit of time: the process it runs in has that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lingchat.runtime.formats.traced import (
    Traced,
    as_traced,
    carries,
    foreign,
    format_traced,
    join_traced,
    settle,
)

# Methods of strings that `Traced` follows; the results of all others are foreign where anything marked takes part.
_FOLLOWED_METHODS = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "removeprefix",
        "removesuffix",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "replace",
        "join",
        "lower",
        "upper",
        "title",
        "capitalize",
    ]
)
# Filters that hand on the objects they are given, or call only followed methods of them.
_FOLLOWED_FILTERS = frozenset(
    [
        "attr",
        "batch",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "first",
        "groupby",
        "items",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "random",
        "reject",
        "rejectattr",
        "reverse",
        "select",
        "selectattr",
        "slice",
        "sort",
        "trim",
        "unique",
        "upper",
    ]
)
_LARGEST_POWER_BITS = 4096
_LARGEST_PRODUCT = 1 << 24  # elements of a repeated string or list


def to_text(value: Any) -> str:
    """`str(value)` as Jinja prints it, with marks kept."""
    if isinstance(value, str):
        return value
    return "" if isinstance(value, jinja2.Undefined) else settle(str(value), value)


class _CodeGenerator(CodeGenerator):
    """Compiles `~` to a call of ours and refuses `autoescape`, whose markup strings would shed the marks."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.concat_values((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Any) -> None:
        self.fail("autoescape is not supported in chat templates", node.lineno)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, frame: Any) -> None:
        self.fail("autoescape is not supported in chat templates", node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what the model is to write, for training. Here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  # so declared by Jinja

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """`output_limit` bounds, in characters, every string that output is collected into."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=to_text)
        self.output_limit = 1 << 22
        self.concat = self._concat  # type: ignore[method-assign]
        for name, function in self.filters.items():
            if name not in _FOLLOWED_FILTERS:
                self.filters[name] = _unfollowed(function)
        self.filters |= {
            "tojson": _unfollowed(_to_json),
            "join": _join,
            "replace": _replace,
            "format": self._format_filter,
            "string": to_text,
            "safe": lambda value: value if isinstance(value, Traced) else jinja2.filters.do_mark_safe(value),
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: settle(datetime.now().strftime(form), form),
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        del self.globals["lipsum"]

    def _concat(self, parts: Iterable[str]) -> str:
        texts: list[str] = []
        size = 0
        for text in parts:
            size += len(text)
            if size > self.output_limit:
                raise OutputLimit
            texts.append(text)
        return join_traced("", texts)

    def concat_values(self, values: Iterable[Any]) -> str:
        return self._concat(map(to_text, values))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, str):
            return super().call(__context, __obj, *args, **kwargs)
        for hidden in ("_loop_vars", "_block_vars"):  # what compiled templates pass along to macros
            kwargs.pop(hidden, None)
        if not carries([owner, args, kwargs]):
            return super().call(__context, __obj, *args, **kwargs)
        if __obj.__name__ in _FOLLOWED_METHODS:
            return getattr(as_traced(owner), __obj.__name__)(*args, **kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, bytes):
            raise SecurityError(f"str.{__obj.__name__} is not available to chat templates")
        return foreign(result) if isinstance(result, str) else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or getattr(value, "__name__", "") not in ("format", "format_map"):
            return None
        plain = super().wrap_str_format(str.__str__(owner).format)
        assert plain is not None  # it is a str.format
        by_map = value.__name__ == "format_map"

        def traced_format(*args: Any, **kwargs: Any) -> str:
            if by_map:
                (mapping,) = args
                args, kwargs = (), dict(mapping)
            names = list(kwargs)
            count = len(args)
            result = format_traced(
                lambda values: plain(*values[:count], **dict(zip(names, values[count:], strict=True))),
                [*args, *kwargs.values()],
            )
            return foreign(result) if isinstance(owner, Traced) else result

        return traced_format

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            return _percent(left, right)
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        return settle(super().call_binop(context, operator, left, right), left, right)

    def _format_filter(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if args and kwargs:
            raise jinja2.exceptions.FilterArgumentError("format takes positional or named values, not both")
        return _percent(to_text(value), kwargs or args)


class OutputLimit(Exception):
    """A string grew past what a chat template may produce."""


def _unfollowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose string result is foreign when anything marked may go in."""
    hidden = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own first argument

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not isinstance(result, str):
            return result
        # Even a marked result is not trusted to have all its marks: the filter may have joined plain copies to it.
        return foreign(result) if carries([args[hidden:], kwargs]) else result

    return wrapped


def _percent(text: str, values: Any) -> str:
    if isinstance(values, Mapping):
        names = list(values)
        result = format_traced(
            lambda found: str.__str__(text) % dict(zip(names, found, strict=True)), list(values.values())
        )
    elif isinstance(values, tuple):
        result = format_traced(lambda found: str.__str__(text) % tuple(found), list(values))
    else:
        result = format_traced(lambda found: str.__str__(text) % found[0], [values])
    return foreign(result) if isinstance(text, Traced) else result


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _LARGEST_POWER_BITS:
            raise OutputLimit
        return
    for many, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(many, str | list | tuple) and len(many) * count > _LARGEST_PRODUCT:
            raise OutputLimit


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _LARGEST_POWER_BITS:
        raise OutputLimit


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it: no HTML escapes, keys in their order, other scripts as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_environment
def _join(environment: Any, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return join_traced(to_text(d), map(to_text, value))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return as_traced(to_text(value)).replace(to_text(old), to_text(new), -1 if count is None else count)


def _raise_exception(message: Any) -> NoReturn:
    raise Refused(str(message))


class Refused(jinja2.exceptions.TemplateError):
    """The template called `raise_exception`."""


class _Dict:
    """`dict(...)` without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that takes no name with an underscore in front, which could reach the interpreter's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        jinja2.utils.Namespace.__init__(self)
        for name, value in dict(*rest, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}: no underscore in front")
        super().__setitem__(name, value)

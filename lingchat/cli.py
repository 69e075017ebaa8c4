"""The command line: arguments only. Every command imports its own module when it runs, so that none pays for another.

The order of things in a chat matters: the engine's process starts first and loads while the rest is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lingchat import __version__
from lingchat.arguments import Parser
from lingchat.errors import EXIT_CODES, EXIT_INTERRUPT, EXIT_PIPE, LingchatError, UsageError
from lingchat.streams import guarded_stdout, keep_open, need_screen

if TYPE_CHECKING:
    from lingchat.config import Settings
    from lingchat.engines.api import Engine
    from lingchat.engines.process import Worker
    from lingchat.events import RunStart


class Command(NamedTuple):
    module: str  # has main(argv) -> exit code
    usage: str
    help: str


COMMANDS: dict[str, Command] = {
    "models": Command("lingchat.models_cli", "models [list|show|add|rm]", "models here and on this disk"),
    "sessions": Command("lingchat.sessions_cli", "sessions list|show|search|export|rm", "earlier conversations"),
    "stats": Command("lingchat.stats_cli", "stats RUN...", "latency figures of a run, or several compared"),
    "replay": Command("lingchat.ui.replay", "replay RUN [--speed N|--step]", "watch a run again on its own clock"),
    "demo": Command("lingchat.ui.demo", "demo", "one prompt, a ladder of removed waits, side by side"),
    "config": Command("lingchat.config_cli", "config path|show|set", "settings and where each comes from"),
    "bench": Command("lingchat.bench", "bench --shape NAME", "speed of a true shape here, on random weights"),
    "doctor": Command("lingchat.doctor", "doctor", "device, memory, versions, terminal, model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's); the exit code."""
    keep_open()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with guarded_stdout():
            return _run(words)
    except LingchatError as problem:
        from lingchat.notes import Notes

        Notes().say(str(problem), error=True)
        return problem.exit_code
    except BrokenPipeError:
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPT


def _run(words: list[str]) -> int:
    try:
        if words and words[0] in COMMANDS:
            code: int = importlib.import_module(COMMANDS[words[0]].module).main(words[1:])
            return code
        return _chat(words)
    except SystemExit as end:  # argparse has printed a help or the version
        return int(end.code or 0)


def parser() -> Parser:
    """The options of a chat and of `-p`."""
    parse = Parser(
        "lingchat",
        usage="lingchat [PROMPT] [options]      the chat screen; PROMPT is sent first\n"
        "       lingchat -p PROMPT [options]    one reply to standard output\n"
        "       lingchat COMMAND -h             help of a command",
        description="A terminal chat with its own runtime that shows every token's latency.",
        epilog=_epilog,
    )
    parse.add_argument("prompt", nargs="?", metavar="PROMPT", help=argparse.SUPPRESS)
    parse.add_argument("-V", "--version", action="version", version=f"lingchat {__version__}", help="show the version")
    parse.add_argument("--plain", action="store_true", help="line mode: dumb terminals, screen readers, slow links")

    group = parse.add_argument_group("conversation")
    group.add_argument("-c", dest="last", action="store_true", help="go on with the last session")
    group.add_argument("-r", dest="resume", metavar="ID", help="go on with session ID")
    group.add_argument("-s", dest="system", metavar="SYSTEM", help="system message")

    group = parse.add_argument_group("model")
    group.add_argument("-m", "--model", metavar="MODEL", help="a name, folder or .gguf file (lingchat models)")
    group.add_argument("--device", metavar="WHERE", help="auto (a GPU if there is one), cpu, cuda")
    group.add_argument(
        "--dtype", metavar="TYPE", help="auto, int8, fp32, bf16; fp8 and int4 as the model's file has them"
    )
    group.add_argument("--threads", metavar="N", help="threads of the engine")
    group.add_argument("--context", metavar="TOKENS", help="longest conversation, prompt and reply together")
    group.add_argument("--spec", metavar="off|on|K", help="drafting, or at most K drafts a round")
    group.add_argument(
        "--thinking", metavar="auto|on|off", help="reasoning before the answer; auto is the model's own way"
    )

    group = parse.add_argument_group("sampling")
    group.add_argument("--temperature", metavar="T", help="0 is greedy")
    group.add_argument("--seed", metavar="N", help="fixes the text of a reply")
    group.add_argument("--max-tokens", metavar="N", help="longest reply")
    group.add_argument(
        "--sampling", metavar="K=V", nargs="+", action="extend", help="top_p, top_k, min_p, repetition_penalty, ..."
    )

    group = parse.add_argument_group("one reply (-p)")
    group.add_argument("-p", dest="ask", metavar="PROMPT", help="the prompt; - reads it from standard input")
    group.add_argument(
        "-a", dest="attach", metavar="FILE", nargs="+", action="extend", help="text files to add to the prompt"
    )
    group.add_argument("-o", dest="out", metavar="FILE", help="write the result there, whole or not at all")
    group.add_argument("--output", choices=("text", "json", "jsonl"), help="form of the result")
    group.add_argument("--stats", action="store_true", help="latency figures to standard error")
    group.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="stop after that long (exit 124)")
    group.add_argument("--no-stdin", action="store_true", help="do not read standard input")
    group.add_argument("--color", metavar="WHEN", help="auto, always, never")
    return parse


def _epilog() -> str:
    """What the help ends in."""
    import textwrap

    commands = "\n".join(f"  {command.usage:<36} {command.help}" for command in COMMANDS.values())
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    return f"commands:\n{commands}\n\n" + textwrap.fill(f"exit codes: {codes}", 98, subsequent_indent="  ")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e7:
        raise argparse.ArgumentTypeError("must be above 0")
    return seconds


def _chat(words: list[str]) -> int:
    found = parser().parse(words)
    if found.prompt is not None and found.ask is not None:
        raise UsageError("there are two prompts: -p takes one, in quotes if it has several words")
    if found.last and found.resume:
        raise UsageError("-c and -r name two sessions: give one")
    if found.ask is None and found.prompt is not None:
        _refuse_mistyped_command(found.prompt)
    if found.ask is None and found.prompt is not None and not sys.stdout.isatty() and not found.plain:
        found.ask = found.prompt  # there is no screen to chat on, and the prompt is there
    run = _headless if found.ask is not None else _plain if found.plain else _screen
    if found.ask is None:
        _refuse_headless_options(found)
    if run is _screen:
        _need_screen()
    from lingchat.engines.choose import launch

    worker = launch()
    try:
        settings = _settings(found)
        engine = _engine(settings, worker)
    except LingchatError:
        if worker is not None:
            worker.discard()
        raise
    from lingchat.opening import run_start

    return run(found, settings, engine, run_start(settings, words, worker.started_ns if worker is not None else None))


def _refuse_mistyped_command(prompt: str) -> None:
    """`lingchat modles` is no question to a model, which would answer it at length."""
    import difflib

    near = ["-h"] if prompt == "help" else difflib.get_close_matches(prompt, COMMANDS, n=1, cutoff=0.8)
    if near:
        raise UsageError(f"did you mean lingchat {near[0]}? As a prompt that word goes with -p: lingchat -p {prompt}")


def _settings(found: argparse.Namespace) -> Settings:
    from lingchat.config import SAMPLING, load_settings

    flags: dict[str, Any] = {}
    for pair in found.sampling or ():
        name, equals, value = pair.partition("=")
        if not equals or name not in SAMPLING:
            raise UsageError(f"--sampling takes NAME=VALUE with {', '.join(SAMPLING)}; {pair!r} is none of these")
        flags[name] = value
    for name in (
        "model",
        "device",
        "dtype",
        "threads",
        "context",
        "spec",
        "thinking",
        "system",
        "temperature",
        "seed",
        "max_tokens",
        "color",
    ):
        if getattr(found, name) is not None:
            flags[name] = getattr(found, name)
    return load_settings(flags)


def _refuse_headless_options(found: argparse.Namespace) -> None:
    given = {
        "-a": found.attach,
        "-o": found.out,
        "--output": found.output,
        "--stats": found.stats,
        "--timeout": found.timeout,
        "--no-stdin": found.no_stdin,
    }
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} belongs to -p: lingchat -p PROMPT {option} ...")


def _engine(settings: Settings, worker: Worker | None) -> Engine:
    """The engine, its process already loading."""
    from lingchat.engines.choose import choose_engine

    dtype = None if settings.dtype == "auto" else settings.dtype
    return choose_engine(
        settings.model,
        device=settings.device,
        dtype=dtype,
        threads=settings.threads or None,
        context=settings.context or None,
        worker=worker,
    )


def _headless(found: argparse.Namespace, settings: Settings, engine: Engine, start: RunStart) -> int:
    from lingchat.headless.job import Job
    from lingchat.headless.run import run
    from lingchat.opening import open_chat

    job = Job(
        prompt=found.ask,
        output=found.output or "text",
        stats=found.stats,
        out=None if found.out == "-" else found.out,
        attachments=tuple(found.attach or ()),
        stdin=not found.no_stdin,
        timeout_s=found.timeout,
    )
    return run(job, settings, lambda: open_chat(engine, settings, start, last=found.last, resume=found.resume), start)


def _plain(found: argparse.Namespace, settings: Settings, engine: Engine, start: RunStart) -> int:
    from lingchat.opening import open_chat
    from lingchat.ui.plain import run_plain

    chat = open_chat(engine, settings, start, last=found.last, resume=found.resume)
    return run_plain(chat, settings, first_prompt=found.prompt)


def _need_screen() -> None:
    need_screen(
        'lingchat -p "PROMPT" gives one reply, lingchat -p - reads the prompt from standard input, '
        "lingchat --plain is the line mode",
        'lingchat -p "PROMPT" appends what it holds to the prompt, lingchat -p - takes it as the prompt',
    )


def _screen(found: argparse.Namespace, settings: Settings, engine: Engine, start: RunStart) -> int:
    import gc

    gc.disable()  # nearly all of what a start makes stays; the app turns it on again (a fourteenth of the start)
    from lingchat.opening import open_chat
    from lingchat.ui.app import run_app

    chat = open_chat(engine, settings, start, last=found.last, resume=found.resume)
    return run_app(chat, settings, first_prompt=found.prompt)

"""The line mode, `lingchat --plain`: the same chat, history and commands as plain lines of text.

For dumb terminals, screen readers, slow links and pipes. Nothing is redrawn: a reply is printed as it comes, and one
line of figures follows it. Ctrl-c stops a reply; a second one, or one at the prompt, leaves.

Knows the chat; where lines come from stands in `plain_input`, what commands do in `plain_commands`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

from lingchat import events as ev
from lingchat.chat import Chat
from lingchat.config import Settings, paths
from lingchat.errors import EXIT_INTERRUPT, EXIT_PIPE, SIGNAL_EXITS, DiskError, LingchatError, from_code
from lingchat.session import SessionStore
from lingchat.stats.text import ENDINGS
from lingchat.streams import StdoutFailed, write_stdout
from lingchat.ticking import ticking
from lingchat.ui.commands import Call, Unknown, parse
from lingchat.ui.history import History
from lingchat.ui.plain_commands import Commands
from lingchat.ui.plain_input import Lines, PipeLines, TerminalLines
from lingchat.ui.plain_reply import PlainReply
from lingchat.ui.plain_strip import BARS, Spark, strip_line
from lingchat.visible import visible

_DOING = {"download": "downloading", "load": "loading", "compile": "compiling"}
TOLD_EVERY = 0.25  # of a download


def run_plain(chat: Chat, settings: Settings, first_prompt: str | None = None) -> int:
    """Chat line by line until the end of input; the exit code. The chat is closed on every way out."""
    store = SessionStore(paths().sessions) if chat.session is not None else None
    return asyncio.run(PlainChat(chat, settings, store).main(first_prompt))


class PlainChat:
    """One chat in lines."""

    def __init__(self, chat: Chat, settings: Settings, store: SessionStore | None) -> None:
        self.chat = chat
        self.history = History(None if settings.private else paths().history, os.getcwd())
        self.history.private = settings.private
        self.reasoning_shown = False
        self.leaving = False
        self.start_text = ""  # what the next prompt starts with
        self.editing: int | None = None  # the user message that the next text replaces
        self._commands = Commands(self, store)
        self._interactive = sys.stdin is not None and sys.stdin.isatty()
        self._loading: asyncio.Task[None] | None = None
        self._main: asyncio.Task[int] | None = None
        self._replying = False
        self._stopping = False
        self._code = 0  # of the signal that ends the chat
        self._failed = 0  # of the first error, for a script

    # ------------------------------------------------------------------ the loop

    async def main(self, first_prompt: str | None) -> int:
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number, exit_code in SIGNAL_EXITS.items():
            loop.add_signal_handler(number, self._leave, exit_code)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            self.say("lingchat, line mode. /help lists commands, ctrl-c stops a reply, ctrl-d leaves.")
            loading = self.load(self.chat.start())
            lines: Lines = TerminalLines(self.history) if self._interactive else PipeLines()
            if first_prompt or not self._interactive:
                await asyncio.wait([loading])  # nobody types meanwhile, and a log reads in order
            if first_prompt:
                self.say(f"> {first_prompt}")
                await self.take(first_prompt)
            while not self.leaving:
                start, self.start_text = self.start_text, ""
                text = await lines.read(start)
                if text is None:
                    break
                await self.take(text)
        except KeyboardInterrupt:
            self._code = EXIT_INTERRUPT
        except BrokenPipeError:
            self._code = EXIT_PIPE
        except asyncio.CancelledError:
            if not self._code:
                raise
        except StdoutFailed as problem:
            await self._end(problem.exit_code)
            raise
        code = self._code or (0 if self._interactive else self._failed)
        await self._end(code)
        return code

    async def _end(self, code: int) -> None:
        if self._loading is not None:
            self._loading.cancel()
        await self.chat.close(code)

    def _interrupt(self) -> None:
        """Ctrl-c while no prompt reads keys."""
        if self._replying and not self._stopping:
            self._stopping = True
            self.chat.cancel()
        else:
            self._leave(EXIT_INTERRUPT)

    def _leave(self, code: int) -> None:
        self._code = self._code or code
        self.leaving = True
        if self._replying and not self._stopping:
            self._stopping = True
            self.chat.cancel()
        elif self._main is not None:
            self._main.cancel()

    def say(self, text: str) -> None:
        """A line of ours."""
        write_stdout(visible(text) + "\n")

    def fail(self, problem: LingchatError) -> None:
        self._failed = self._failed or problem.exit_code
        self.say(f"error: {problem}")

    async def take(self, text: str) -> None:
        """A typed text: a command, or a message for the model."""
        if not text.strip():
            return
        try:
            self.history.add(text)
        except DiskError as problem:
            self.fail(problem)
        what = parse(text)
        if isinstance(what, Unknown):
            self.say(what.message)
        elif isinstance(what, Call):
            try:
                await self._commands.run(what)
            except LingchatError as problem:
                self.fail(problem)
        else:
            editing, self.editing = self.editing, None
            if editing is None or self.chat.session is None:
                await self.reply(self.chat.send(what.text))
            else:
                await self.reply(self.chat.edit(self.chat.session.node(editing), what.text))

    # ------------------------------------------------------------------ the engine

    def load(self, stream: AsyncIterator[ev.AnyEvent]) -> asyncio.Task[None]:
        """Follow an engine that starts; the prompt stays usable meanwhile."""
        if self._loading is not None:
            self._loading.cancel()
        self._loading = loading = asyncio.create_task(self._follow(stream))
        loading.add_done_callback(_seen)
        return loading

    async def _follow(self, stream: AsyncIterator[ev.AnyEvent]) -> None:
        told: tuple[str, int] | None = None
        async for event in stream:
            if isinstance(event, ev.Warn):
                self.say(event.message)
            if not isinstance(event, ev.Engine) or event.phase not in _DOING:
                continue
            share = event.done_bytes / event.total_bytes if event.total_bytes else 0.0
            mark = (event.phase, int(share / TOLD_EVERY))
            if mark != told:
                told = mark
                amount = f" {share:.0%} of {event.total_bytes / 1e6:,.0f} MB" if event.total_bytes else ""
                self.say(f"{_DOING[event.phase]} {event.model or 'the model'}{amount}")
        info = await self.chat.engine.info()
        self.say(f"{info.name} is ready" + (f" · {info.provenance}" if info.provenance != "live" else ""))

    async def _ready(self) -> bool:
        """Wait for the engine; False, having said why, when it cannot be had."""
        if self._loading is None:
            return True
        try:
            await asyncio.shield(self._loading)
        except LingchatError as problem:
            self.fail(problem)
            return False
        return True

    # ------------------------------------------------------------------ replies

    async def reply(self, stream: AsyncIterator[ev.AnyEvent]) -> None:
        """Print a reply as it comes, then its line of figures."""
        if not await self._ready():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)  # a prompt that has read keys took it away
        self._replying, self._stopping = True, False
        spark, lines = Spark(), PlainReply(_write, self.say, reasoning_shown=self.reasoning_shown)
        try:
            async with ticking(self.chat), aclosing(stream) as events:  # type: ignore[type-var]  # a generator
                async for event in events:
                    lines.add(event)
                    match event:
                        case ev.Decode():
                            spark.add(event)
                        case ev.Error():
                            self.fail(from_code(event.code, event.message))
                        case ev.Warn():
                            lines.line(event.message)
        except LingchatError as problem:
            lines.end()
            self.fail(problem)
        finally:
            self._replying = False
        lines.end()
        turn = self.chat.stats.current
        if turn is not None and turn.rounds:
            picture = spark.text(turn) if _draws(BARS) else ""
            self.say(f"[{strip_line(self.chat.stats, turn, picture)}]")
        elif turn is not None and turn.stop == "cancel":
            self.say(f"[{ENDINGS[turn.stop]}]")  # before its first token, so there are no figures to say it


def _write(text: str) -> None:
    if text:
        write_stdout(visible(text))


def _draws(glyphs: str) -> bool:
    """Whether block glyphs make sense on standard output."""
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    try:
        glyphs.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _seen(task: asyncio.Task[None]) -> None:
    """A load that failed is told when someone waits for it; it is no unretrieved error."""
    if not task.cancelled():
        task.exception()

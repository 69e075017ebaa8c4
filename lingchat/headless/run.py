"""Runs a job: prompt in, result out, and an exit code that says what happened.

Exit codes are those of `errors`. An interrupted reply keeps its text: in the session, on standard output, in the JSON
object. A file given with `-o` is only replaced by a whole reply. A reply that ended inside its reasoning has no answer:
that is an error (exit 7), whose JSON object keeps the reasoning and how the reply stopped.

Knows the chat; knows nothing of how it was opened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from lingchat.chat import Chat
from lingchat.config import Settings
from lingchat.errors import EXIT_PIPE, EXIT_TIMEOUT, EXIT_UNEXPECTED, SIGNAL_EXITS, LingchatError, NoAnswer, from_code
from lingchat.events import Engine, Error, RunStart, ToolCall, Warn, now_ns
from lingchat.headless.job import Job, message, read_attachments
from lingchat.headless.result import Form, Outcome, make_form
from lingchat.headless.sink import OutFile, Sink, Stdout, StdoutClosed
from lingchat.headless.stdin import read_stdin
from lingchat.notes import Notes
from lingchat.replies import Heard, call_line
from lingchat.stats import RunStats, report
from lingchat.ticking import ticking

STOP_GRACE_S = 2.0  # for the engine to answer a cancel

ChatOpener = Callable[[], Chat]


def run(job: Job, settings: Settings, open_chat: ChatOpener, run_start: RunStart) -> int:
    """Carry out `job` with the chat that `open_chat` gives; the exit code.

    `run_start` begins the lines of `--output jsonl`; it is the one that the chat's trace begins with.
    """
    return asyncio.run(_Run(job, settings, open_chat, run_start).main())


class _Run:
    def __init__(self, job: Job, settings: Settings, open_chat: ChatOpener, run_start: RunStart) -> None:
        self._job = job
        self._open_chat = open_chat
        self._run_start = run_start
        self._notes = Notes(settings.color)
        self._said: set[str] = set()
        self._outcome = Outcome()
        self._chat: Chat | None = None
        self._replying = False
        self._stop: int | None = None  # the exit code of what interrupted the run
        self._work: asyncio.Task[None] | None = None

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        for number, code in SIGNAL_EXITS.items():
            loop.add_signal_handler(number, self._interrupt, code)
        if self._job.timeout_s is not None:
            loop.call_later(self._job.timeout_s, self._interrupt, EXIT_TIMEOUT)
        try:
            sink: Sink = OutFile(self._job.out) if self._job.out else Stdout(partial(self._interrupt, EXIT_PIPE))
        except LingchatError as problem:
            self._fail(problem)
            await self._close_chat()
            return self._outcome.exit
        terminal = self._job.out is None and os.isatty(1)
        form = make_form(self._job.output, sink, terminal=terminal, run_start=self._run_start)
        self._work = asyncio.create_task(self._answer(form))
        try:
            await self._work
        except asyncio.CancelledError:
            pass  # by `_interrupt`, which said why
        except LingchatError as problem:
            self._fail(problem)
        self._settle()
        self._work = asyncio.create_task(self._finish(form, sink))
        try:
            await self._work
        except asyncio.CancelledError:
            # A reader that has stopped reading; a signal ended the wait.
            self._outcome.exit = self._stop or EXIT_UNEXPECTED
        await self._close_chat()
        return self._outcome.exit

    def _interrupt(self, code: int) -> None:
        """Stop with `code`: the reply first, so that what there is of it is kept; whatever still waits, if need be."""
        again = self._stop is not None
        if not again:
            self._stop = code
        if self._chat is not None and self._replying and not again:
            self._chat.cancel()
            asyncio.get_running_loop().call_later(STOP_GRACE_S, self._abandon)
        else:
            self._abandon()

    def _abandon(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def _answer(self, form: Form) -> None:
        """The run itself: engine and standard input at the same time, then the reply."""
        chat = self._chat = self._open_chat()
        loading = asyncio.create_task(self._load(chat, form))
        reading = asyncio.create_task(self._message())
        try:  # whichever fails first ends the run: a missing model is told at once, though a pipe is still silent
            await asyncio.wait((loading, reading), return_when=asyncio.FIRST_EXCEPTION)
            for task in sorted((loading, reading), key=lambda task: not task.done()):
                await task
        finally:
            loading.cancel()
            reading.cancel()
        text = reading.result()
        self._replying = True
        heard = Heard()
        async with ticking(chat, form.add), aclosing(chat.send(text)) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                self._notes.clear()
                form.add(event)
                heard.add(event)
                if isinstance(event, Error):
                    self._fail(from_code(event.code, event.message))
                elif isinstance(event, Warn):
                    self._warn(event.message)
                elif isinstance(event, ToolCall) and self._job.output == "text":
                    self._notes.say(f"the model calls {call_line(event.name, event.arguments)}; nothing runs it here")
        self._replying = False
        nothing = heard.no_answer
        if nothing and self._stop is None:
            problem = NoAnswer(f"{nothing}. {self._advice(chat)}")
            said = Error(t_ns=now_ns(), code=problem.code, message=str(problem))
            chat.note(said)
            form.add(said)
            raise problem

    def _advice(self, chat: Chat) -> str:
        """What lets a model answer that did not come to its answer."""
        switch = chat.info is None or chat.info.thinking_switch is not False
        ways = "Give it more room (--max-tokens, --context)" + " or let it answer at once (--thinking off)" * switch
        return ways + ("." if self._job.output == "json" else "; --output json holds the reasoning.")

    async def _load(self, chat: Chat, form: Form) -> None:
        async for event in chat.start():
            form.add(event)
            if isinstance(event, Engine):
                self._notes.engine(event)
            elif isinstance(event, Warn):
                self._warn(event.message)

    def _warn(self, text: str, *, error: bool = False) -> None:
        """Each thing is said once, though several files may meet it."""
        if text not in self._said:
            self._said.add(text)
            self._notes.say(text, error=error)

    async def _message(self) -> str:
        job = self._job
        attachments = read_attachments(job.attachments)
        data = ""
        if job.stdin or job.prompt_is_stdin:
            data = await read_stdin(self._notes.say, whole=job.prompt_is_stdin)
        if job.prompt_is_stdin:
            return message(data.removesuffix("\n"), attachments, "")
        return message(job.prompt, attachments, data)

    def _fail(self, problem: LingchatError) -> None:
        if self._outcome.error is None:
            self._outcome.status, self._outcome.exit = "error", problem.exit_code
            self._outcome.error = {"code": problem.code, "message": str(problem)}
            self._warn(str(problem), error=True)

    def _settle(self) -> None:
        """What an interruption makes of the outcome."""
        if self._stop is None:
            return
        outcome = self._outcome
        outcome.exit = self._stop
        if self._stop == EXIT_TIMEOUT:
            text = f"the time limit of {self._job.timeout_s:g} s is over"
            outcome.status, outcome.error = "error", {"code": "timeout", "message": text}
            self._notes.say(text, error=True)
        elif self._stop != EXIT_PIPE:
            outcome.status, outcome.error = "cancel", {"code": "cancelled", "message": "stopped by a signal"}
            self._notes.clear()
        else:
            outcome.status, outcome.error = "cancel", None

    async def _finish(self, form: Form, sink: Sink) -> None:
        """The end of the result, and `--stats`."""
        outcome = self._outcome
        stats = self._chat.stats if self._chat is not None else RunStats()
        if self._chat is not None:
            outcome.session = self._chat.session.id if self._chat.session is not None else None
            outcome.run = self._chat.trace.id if self._chat.trace is not None else None
        try:
            form.end(outcome, stats, now_ns())
            whole = outcome.exit == 0 or self._job.output == "json"
            await sink.finish(keep=whole)
            if not whole and self._job.out:
                self._notes.say(f"{self._job.out} is left as it was, since the reply is not whole")
        except StdoutClosed:
            outcome.exit = self._stop or EXIT_PIPE
        except LingchatError as problem:
            self._fail(problem)
        if self._job.stats and stats.current is not None:
            self._notes.block(report(stats))

    async def _close_chat(self) -> None:
        if self._chat is None:
            return
        try:
            await self._chat.close(self._outcome.exit)
        except LingchatError as problem:
            self._fail(problem)

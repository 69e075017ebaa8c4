"""One loaded model and one request at a time: messages to ids, reused prefix, prefill, rounds, typed events.

`Runtime` knows no pipe and no screen; the worker wraps it in a process, tests and benchmarks call it directly.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lingchat import events
from lingchat.engines.api import ChatRequest, ModelInfo
from lingchat.errors import ContextOverflow, UsageError
from lingchat.events import now_ns
from lingchat.runtime.drafts.width import Width
from lingchat.runtime.drivers.base import TimedRound
from lingchat.runtime.drivers.recorded import driver_for
from lingchat.runtime.formats.load import Prompt
from lingchat.runtime.loading import Emit, Loading, free_bytes, load
from lingchat.runtime.ops.protocol import BufferSpec, Stopped
from lingchat.runtime.outbox import Outbox
from lingchat.runtime.prefix import Prefix
from lingchat.runtime.rounds import Rounds
from lingchat.runtime.warmup import WarmUp
from lingchat.runtime.words import Words

if TYPE_CHECKING:
    import torch


class Runtime:
    def __init__(self, path: Path, loading: Loading, emit: Emit = lambda event: None) -> None:
        """Load the model at `path`. Raises a `LingchatError` that says what is wrong with it or what it needs."""
        loaded = load(path, loading, emit)
        self.context, self.formats, self.threads = loaded.context, loaded.formats, loaded.threads
        self.memory = loaded.memory
        self._ops, self._model, self._drafter = loaded.ops, loaded.model, loaded.drafter
        state = loaded.state
        self._rounds = Rounds(self._ops, self._model, state, self._drafter, loaded.width, loaded.chunk)
        with self._ops.session():
            self._driver = driver_for(self._ops, self._rounds)
        self._prefix = Prefix(state)
        self._auto_width = Width(loaded.width - 1, adaptive=True)
        if self._ops.compiles:
            message = f"compiling {self._ops.compiles}"
            emit(events.Engine(t_ns=now_ns(), phase="compile", message=message, model=loading.name, progress=0.7))
        else:
            emit(events.Engine(t_ns=now_ns(), phase="load", message="warming up", model=loading.name, progress=0.8))
        self._warm_up = WarmUp(self._ops, self._driver, self._auto_width, loaded.threads, adapt=loading.threads is None)
        self._begin()
        self.info = ModelInfo(
            name=loading.name or path.stem,
            path=str(path),
            architecture=loaded.weights.config.architecture,
            quantization=loaded.weights.quantization,
            dtype=loaded.dtype,
            backend=f"{self._ops.name}, {self.threads} thread{'s' if self.threads > 1 else ''}",
            parameters=loaded.weights.parameters,
            context=self.context,
            weights_bytes=self._ops.weight_bytes(),
            kv_bytes=state.cache_bytes,
            state_bytes=state.state_bytes,
            snapshot_bytes=state.places * state.snapshot_bytes,
            suggested_sampling=self.formats.suggested_sampling,
            thinking_switch=self.formats.thinking_switch,
            demo=loading.demo,
        )
        # What is loaded now stays: the collector need never look at it again. The rubbish among it goes while nothing
        # is asked.
        gc.freeze()
        self._tidy = False
        emit(
            events.Engine(
                t_ns=now_ns(),
                phase="ready",
                model=self.info.name,
                backend=self.info.backend,
                weights=self.info.weights_bytes,
                kv=self.info.kv_bytes,
                state=self.info.state_bytes,
                snapshots=self.info.snapshot_bytes,
                free=free_bytes(loading.device),
                context=self.context,
                progress=1.0,
            )
        )

    def _begin(self) -> None:
        """What must be done before the first reply."""
        with self._ops.session():
            if self._ops.compiles:
                for _ in self._driver.prefill([0] * min(32, self.context)):
                    pass
            self._warm_up.begin()
        self._prefix.forget()

    def rest(self) -> bool:
        """While nothing is asked: one more step of what may wait, some milliseconds. Whether there is more of it."""
        if not self._tidy:
            self._tidy = True
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            return True
        with self._ops.session():
            try:
                return self._warm_up.go_on()
            except Stopped:
                return True

    def seconds(self, n_rows: int) -> float:
        """Seconds of one pass over so many rows behind what is computed. Nothing of it is kept: for measurements."""
        with self._ops.session():
            return self._driver.seconds(n_rows)

    def stop(self) -> None:
        """From any thread: what is being computed is not wanted any more. `chat` ends as a cancelled one does."""
        self._ops.stop()

    def go_on(self) -> None:
        """Forget a `stop`: before the next request."""
        self._ops.go_on()

    def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt of a request as token ids."""
        if request.messages is not None:
            return self.formats.prompt(request.messages, tools=request.tools, enable_thinking=request.thinking)
        if request.text is not None:
            return Prompt(self.formats.text_ids(request.text))
        assert request.ids is not None
        bad = next((i for i in request.ids if not 0 <= i < self.formats.vocab_size), None)
        if bad is not None:
            raise UsageError(f"Token id {bad} is not in this model's vocabulary of {self.formats.vocab_size}.")
        return Prompt(list(request.ids))

    def count(self, request: ChatRequest) -> int:
        """Prompt tokens of a request. Safe to call from another thread while `chat` runs."""
        return len(self.prompt(request).ids)

    def chat(self, request: ChatRequest, accepted: int, emit: Emit, cancelled: Callable[[], bool]) -> None:
        """Answer one request: `turn.start` .. `turn.end`. `accepted` is when it reached the engine, in ns.

        Raises a `LingchatError` for a request that cannot be run; the runtime stays usable.
        """
        started = now_ns()
        prompt = self.prompt(request)
        self._check(prompt.ids)
        tokenized = now_ns()
        if request.tools and not self.formats.takes_tools:
            text = f"The template of {self.info.name} does not show tools to the model: it will not know of them."
            emit(events.Warn(t_ns=now_ns(), code="tools", message=text, turn=request.turn))
        try:
            with self._ops.session():
                stop = self._reply(request, prompt, (accepted, started, tokenized), emit, cancelled)
        except BaseException:
            self._prefix.forget()  # a half-done pass may have left rows that no one has counted
            raise
        emit(events.TurnEnd(t_ns=now_ns(), turn=request.turn, stop=stop))

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise UsageError("The prompt is empty.")
        if len(ids) >= self.context:
            raise ContextOverflow(
                f"The prompt has {len(ids):,} tokens and the context holds {self.context:,}, the reply included. "
                "Shorten it, start a new conversation, or raise --context."
            )

    def _reply(
        self,
        request: ChatRequest,
        prompt: Prompt,
        times: tuple[int, int, int],
        emit: Emit,
        cancelled: Callable[[], bool],
    ) -> events.StopReason:
        accepted, started, tokenized = times
        ids = prompt.ids
        sampling, turn = request.sampling, request.turn
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        reused = self._prefix.reuse(ids)
        emit(
            events.TurnStart(
                t_ns=now_ns(),
                turn=turn,
                prompt_tokens=len(ids),
                reused=reused,
                text=request.messages[-1].content if request.messages else request.text or "",
                spec=str(request.spec),
                sampling={**msgspec.structs.asdict(sampling), "seed": seed},
            )
        )
        room = self.context - len(ids)
        budget = min(sampling.max_tokens or room, room)
        self._rounds.begin(ids, budget, sampling, seed, sorted(self.formats.tokenizer.eos_ids))
        prefill_start = now_ns()
        new = ids[reused:]
        done = 0
        self._prefix.keep()  # where the last turn ended: an edit of what follows begins here
        stops = [end - reused for end in self._prefix.places(self.formats.message_ends(ids), reused)]
        try:
            for reached in self._driver.prefill(new, stops):
                self._prefix.extend(new[done:reached])
                done = reached
                if done in stops:
                    self._prefix.keep()
                emit(events.Prefill(t_ns=now_ns(), turn=turn, done=done, total=len(new)))
                if cancelled():
                    return "cancel"
        except Stopped:
            return "cancel"
        prefill_end = now_ns()
        try:
            first = self._driver.first()
        except Stopped:
            return "cancel"
        emit(
            events.TurnFirst(
                t_ns=now_ns(),
                turn=turn,
                accepted=accepted,
                started=started,
                tokenized=tokenized,
                prefill_start=prefill_start,
                prefill_end=prefill_end,
                first_token=first.end_ns,
                prompt_tokens=len(ids),
                reused=reused,
            )
        )
        outbox = Outbox(emit, turn, self._drafter.name, request.keep_ids)
        outbox.begin(prefill_end)
        words = Words(self.formats, request, prompt)
        return self._stream(self._width(request), first, words, outbox, cancelled)

    def _stream(
        self, width: Width, first: TimedRound, words: Words, outbox: Outbox, cancelled: Callable[[], bool]
    ) -> events.StopReason:
        """Turn rounds into text until the reply ends, whoever ends it."""
        timed, anchor = first, None
        rounds = self._driver.decode(width)
        while True:
            ids = timed.record.ids
            if anchor is not None:
                self._prefix.extend((anchor, *ids[:-1]))
            anchor = ids[-1]
            deltas, stopped = words.push(ids)
            outbox.add(timed, deltas)
            stop: events.StopReason | None = None
            if stopped:
                stop = "stop"
            elif timed.record.done:
                stop = "eos" if timed.record.done == 1 else "length"
            elif cancelled():
                stop = "cancel"
            if stop is not None:
                outbox.say(words.finish(stopped))
                outbox.flush()
                return stop
            try:
                timed = next(rounds)
            except Stopped:  # in a round that left nothing
                outbox.say(words.finish(stopped))
                outbox.flush()
                return "cancel"

    def _width(self, request: ChatRequest) -> Width:
        if request.spec == "off":
            return Width(0, adaptive=False)
        if request.spec == "on":
            self._auto_width.begin()
            return self._auto_width
        return Width(min(int(request.spec), self._rounds.width - 1), adaptive=False)  # at most so many

    def forget(self) -> None:
        """Drop what is computed, so that the next request prefills all of its prompt."""
        self._prefix.forget()

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits fp32 [len(ids), V] after each of `ids`: the door for tests, benchmarks and distillation."""
        import torch

        self._prefix.forget()
        out = []
        with self._ops.session():
            state = self._rounds.state
            width = self._rounds.width
            buffer = self._ops.allocate(BufferSpec("logits.ids", (width,), "i32"))
            count = self._ops.allocate(BufferSpec("logits.count", (1,), "i32"))
            for start in range(0, len(ids), width):
                part = ids[start : start + width]
                self._ops.fill(buffer, part)
                self._ops.fill(count, [len(part)])
                logits, _ = self._model.verify(buffer, len(part), state)
                state.commit(count)
                values = torch.frombuffer(bytearray(self._ops.read(logits)), dtype=torch.float32)
                out.append(values.view(len(part), -1))
        self._prefix.forget()
        return torch.cat(out)

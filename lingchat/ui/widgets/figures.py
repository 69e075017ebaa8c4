"""What the latency panel and the one-line strip say, as lines of styled text.

Pure: from a `RunStats` and the present to lines of a width. All digits come from `lingchat.stats`, so the screen and
`lingchat stats` print the same ones; unknown values are "–", never 0. Styles are names of component classes.

Knows stats; knows no widgets and, but for the engine's progress, no events.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from textual.content import Content, Span

from lingchat import stats
from lingchat.events import Engine
from lingchat.stats import RunStats, TurnStats
from lingchat.ui.unanswered import silence
from lingchat.visible import visible_line

LABEL, VALUE, STRONG, MUTED = ".figures--label", ".figures--value", ".figures--strong", ".figures--muted"
BAR, TRACK, BAD, BUSY = ".figures--bar", ".figures--track", ".figures--bad", ".figures--busy"
LOADING = ("start", "download", "load", "compile")
PHASES = {"queue": "queued", "prefill": "prefill", "decode": "decoding", "done": "done"}
ENDS = {"eos": "done", "stop": "done", "length": "length limit", "cancel": "stopped", "error": "failed"}
LOAD_WORDS = {
    "start": "starting engine",
    "download": "downloading model",
    "load": "loading model",
    "compile": "compiling",
}
HISTOGRAM_ROWS = 8

Piece = tuple[str, str]


def line(*pieces: Piece) -> Content:
    """Pieces in a row; neighbours of one style become one span, since each costs the terminal some forty bytes."""
    text, spans, last = "", [], ""
    for part, style in pieces:
        if spans and style == last:
            spans[-1] = Span(spans[-1].start, len(text) + len(part), style)
        else:
            spans.append(Span(len(text), len(text) + len(part), style))
        text += part
        last = style
    return Content(text, spans)


def spread(left: Iterable[Piece], right: Iterable[Piece], width: int) -> Content:
    """`left` at the left end, `right` at the right end."""
    left, right = list(left), list(right)
    room = width - sum(cell_len(text) for text, _ in (*left, *right))
    return line(*left, (" " * max(room, 1), ""), *right)


def bar(share: float | None, width: int) -> list[Piece]:
    """A gauge; an unknown share is an empty one."""
    full = 0 if share is None else max(0, min(width, round(share * width)))
    return [("█" * full, BAR), ("░" * (width - full), TRACK)]


def loading(run: RunStats) -> Engine | None:
    """The engine event while the engine is not ready."""
    return run.engine if run.engine is not None and run.engine.phase in LOADING else None


def context_share(run: RunStats, turn: TurnStats | None) -> float | None:
    if turn is None or turn.context_tokens is None or run.engine is None or not run.engine.context:
        return None
    return turn.context_tokens / run.engine.context


def head_lines(run: RunStats, now_ns: int, width: int, asked_ns: int | None = None) -> list[Content]:
    """The lines above the strip: phase, TTFT and its parts, TPOT, rates. Always the same number of them.

    `asked_ns`: when a request went out that the engine has said nothing about; there are no figures of it then.
    """
    turn = run.current if asked_ns is None else None
    ms = stats.format_ms
    if asked_ns is not None and loading(run) is None:
        (word, style), waited = _unanswered(asked_ns, now_ns)
        lines = [spread([(word, style)], [(waited, VALUE if style == BUSY else BAD)], width)]
    else:
        lines = [_phase_line(run, turn, now_ns, width)]
    if turn is not None and turn.phase == "prefill" and turn.ttft_ms is None:
        lines += _prefill_lines(turn, width)
    else:
        reuse = _reuse(turn)
        lines.append(spread([("TTFT ", LABEL), (ms(turn and turn.ttft_ms), STRONG), (" ms", MUTED)], reuse, width))
        half = width // 2
        parts = (
            ("queue", "queue_ms"),
            ("tokenize", "tokenize_ms"),
            ("prefill", "prefill_ms"),
            ("first", "first_round_ms"),
        )
        cells = [(name, ms(getattr(turn, field) if turn is not None else None)) for name, field in parts]
        for (a, x), (b, y) in (cells[:2], cells[2:]):
            first = f"  {a} {x}"
            lines.append(
                line(
                    (f"  {a} ", MUTED),
                    (x, VALUE),
                    (" " * max(half - cell_len(first), 1), ""),
                    (f"{b} ", MUTED),
                    (y, VALUE),
                )
            )
    quantiles = [(q, ms(turn.tpot(q / 100) if turn is not None else None)) for q in (50, 95, 99)]
    tpot: list[Piece] = [("TPOT", LABEL)]
    for q, text in quantiles:
        tpot += [(f" p{q} ", MUTED), (text, STRONG)]
    lines.append(spread(tpot, [("ms", MUTED)], width))
    lines.append(_round_line(turn, width))
    now = turn.tok_s_now(now_ns) if turn is not None else None
    rate = stats.format_rate
    whole = rate(turn.tok_s if turn is not None else None)
    lines.append(
        spread(
            [("now ", LABEL), (rate(now), STRONG), (" tok/s", MUTED)],
            [("turn ", LABEL), (whole, VALUE), (" tok/s", MUTED)],
            width,
        )
    )
    return lines


def _unanswered(asked_ns: int, now_ns: int) -> tuple[Piece, str]:
    """What to say of a request without an event, and for how long it has been one."""
    waited = stats.format_seconds((now_ns - asked_ns) / 1e6)
    if silence(asked_ns, now_ns) is None:
        return ("queued, tokenizing", BUSY), waited
    return ("no word from the engine", BAD), f"{waited} · esc stops"


def _phase_line(run: RunStats, turn: TurnStats | None, now_ns: int, width: int) -> Content:
    engine = loading(run)
    if engine is not None:
        return line((LOAD_WORDS[engine.phase], BUSY))
    if turn is None:
        return line(("ready" if run.engine is not None else "no engine", LABEL))
    stall = turn.stalled(now_ns)
    if stall is not None:
        waited = stats.format_seconds(stall.waited_ms)
        return spread([(f"stalled in {stall.phase}", BAD)], [(f"{waited} · esc stops", BAD)], width)
    word = ENDS.get(turn.stop or "eos", "done") if turn.phase == "done" else PHASES[turn.phase]
    style = LABEL if turn.phase == "done" else BUSY
    count = [(stats.format_count(turn.tokens), STRONG), (" tok", MUTED)]
    elapsed = stats.format_seconds(turn.elapsed_ms(now_ns))
    gap = " " * max((width - len(word) - len(elapsed) - sum(cell_len(t) for t, _ in count)) // 2, 1)
    return spread([(word, style), (gap, ""), *count], [(elapsed, VALUE)], width)


def _prefill_lines(turn: TurnStats, width: int) -> list[Content]:
    total = turn.prefill_total
    share = turn.prefill_done / total if total else None
    done = f"{stats.format_count(turn.prefill_done)} / {stats.format_count(total)} tok"
    speed = stats.format_rate(turn.prefill_tok_s)
    return [
        spread([("prefill ", LABEL), (done, VALUE)], _reuse(turn), width),
        line(*bar(share, width)),
        spread([("", "")], [(speed, STRONG), (" tok/s", MUTED)], width),
    ]


def _reuse(turn: TurnStats | None) -> list[Piece]:
    share = turn.reused / turn.prompt_tokens if turn and turn.prompt_tokens and turn.reused is not None else None
    return [("reuse ", MUTED), (stats.format_percent(share), VALUE)]


def _round_line(turn: TurnStats | None, width: int) -> Content:
    if turn is None or not turn.drafted_rounds:
        return line(("no draft" if turn is not None and turn.rounds else "", MUTED))
    ms = stats.format_ms
    pieces = [
        ("round", LABEL),
        (" p50 ", MUTED),
        (ms(turn.round(0.5)), VALUE),
        (" p95 ", MUTED),
        (ms(turn.round(0.95)), VALUE),
    ]
    return line(*pieces, (" → L ", MUTED), (stats.format_ratio(turn.accept_len), STRONG))


def legend(top_ms: float | None, width: int, drafted: bool) -> Content:
    """What the strip's heights and colours mean; the reference is p50 of the rounds (see `strip`)."""
    above = f" · ▲ >{stats.format_ms(top_ms)}" if top_ms is not None else ""
    red = " · red >3x round" if drafted else " · red >3x p50"
    pieces: list[Piece] = [("ms/token", MUTED)]
    for piece in ((above, MUTED), (red, BAD)):
        if sum(cell_len(text) for text, _ in (*pieces, piece)) <= width:
            pieces.append(piece)
    return line(*pieces)


def tail_lines(run: RunStats, width: int, height: int) -> list[Content]:
    """The lines below the strip, at most `height`: acceptance, gauges, troubles. Gauges go last when room is short."""
    turn = run.current
    foot = [*_gauges(run, turn, width), _troubles(run, turn, width)]
    accept = _acceptance(turn, width, max(height - len(foot) - 3, 2))
    lines = [*accept, line(), *foot] if accept else foot
    return lines[:height]


def _acceptance(turn: TurnStats | None, width: int, room: int) -> list[Content]:
    if turn is None or not turn.drafted_rounds:
        return []
    head = [("accept ", LABEL), ("L ", MUTED), (stats.format_ratio(turn.accept_len), STRONG)]
    right = [(stats.format_percent(turn.accept_rate), STRONG), (" of drafted", MUTED)]
    lines = [spread(head, right, width)]
    counts = turn.accept_hist
    rows = max(2, min(HISTOGRAM_ROWS, room))
    names = [str(accepted) for accepted in range(len(counts))]
    if len(counts) > rows:
        names = [*names[: rows - 1], f"{rows - 1}+"]
        counts = [*counts[: rows - 1], sum(counts[rows - 1 :])]
    total, most = sum(counts), max(counts)
    for name, count in zip(names, counts, strict=True):
        size = width - 8
        full = round(count / most * size) if most else 0
        share = stats.format_percent(count / total if total else None)
        lines.append(line((f"{name:>2} ", LABEL), ("▇" * full, BAR), (" " * (size - full), ""), (f"{share:>5}", VALUE)))
    positions = [(f" {place} ", stats.format_share(share)) for place, share in enumerate(turn.positions, 1)]
    pieces: list[Piece] = [("pos", LABEL)]
    for place, share in positions:
        if sum(cell_len(text) for text, _ in pieces) + len(place) + len(share) > width:
            break
        pieces += [(place, MUTED), (share, VALUE)]
    lines.append(line(*pieces))
    return lines


def _gauges(run: RunStats, turn: TurnStats | None, width: int) -> list[Content]:
    engine = run.engine
    used = stats.format_count(turn.context_tokens if turn is not None else None)
    room = stats.format_count((engine.context or None) if engine is not None else None)
    text = f" {used} / {room}"
    gauge = bar(context_share(run, turn), max(width - 4 - len(text), 3))
    bytes_ = stats.format_bytes
    half = width // 2
    # Snapshots are of recurrent states; a model without any has no line for them.
    parts = ["weights", "kv", "state", "free"]
    if engine is not None and engine.snapshots:
        parts.insert(3, "snapshots")
    cells = [(name, bytes_(getattr(engine, name) if engine is not None else 0)) for name in parts]
    lines = [line(("ctx ", LABEL), *gauge, (text, VALUE))]
    for start in range(0, len(cells), 2):
        pieces: list[Piece] = []
        for name, value in cells[start : start + 2]:
            if pieces:
                pieces.append((" " * max(half - sum(cell_len(text) for text, _ in pieces), 1), ""))
            pieces += [(f"{name} ", LABEL), (value, VALUE)]
        lines.append(line(*pieces))
    return lines


def _troubles(run: RunStats, turn: TurnStats | None, width: int) -> Content:
    def count(value: int) -> Piece:
        return (str(value), BAD if value else VALUE)

    left = [("stalls ", LABEL), count(turn.stalls) if turn else ("–", VALUE)]
    left += [(" · hiccups ", LABEL), (str(turn.hiccups) if turn else "–", VALUE)]
    return spread(left, [("ui lag ", LABEL), (stats.format_ms(run.ui_lag_ms), VALUE), (" ms", MUTED)], width)


def loading_lines(engine: Engine, width: int) -> list[Content]:
    """Progress of an engine that is not ready."""
    share = engine.progress if engine.progress >= 0 else None
    if share is None and engine.total_bytes:
        share = engine.done_bytes / engine.total_bytes
    done = (
        f"{stats.format_bytes(engine.done_bytes)} / {stats.format_bytes(engine.total_bytes)}"
        if engine.total_bytes
        else ""
    )
    lines = [line(*bar(share, width))]
    lines.append(spread([(done, VALUE)], [(stats.format_percent(share), STRONG)], width))
    message = visible_line(engine.message)
    while message and len(lines) < 5:
        lines.append(line((message[:width], MUTED)))
        message = message[width:].lstrip()
    return lines


def clip(pieces: Iterable[Piece], width: int) -> list[Piece]:
    """The pieces up to `width` cells."""
    out: list[Piece] = []
    for text, style in pieces:
        text = set_cell_size(text, width) if cell_len(text) > width else text
        width -= cell_len(text)
        out.append((text, style))
    return out


def one_line(run: RunStats, now_ns: int, width: int, asked_ns: int | None = None) -> tuple[list[Piece], int]:
    """The one-line form without its strip, and the columns that remain for the strip. What does not fit is left out.

    `asked_ns` as for `head_lines`.
    """
    if asked_ns is not None and loading(run) is None:
        (word, style), waited = _unanswered(asked_ns, now_ns)
        return clip([(f"{word} {waited}", style)], max(width, 0)), 0
    state = _state_line(run, now_ns, width)
    if state is not None:
        return clip(state, max(width, 0)), 0
    assert run.current is not None
    return _figures_line(run, run.current, now_ns, width)


def _state_line(run: RunStats, now_ns: int, width: int) -> list[Piece] | None:
    """One line for a state in which there are no figures of decoding to show."""
    engine = loading(run)
    if engine is not None:
        share = engine.progress if engine.progress >= 0 else None
        text = f"{LOAD_WORDS[engine.phase]} "
        amount = f" {stats.format_percent(share)}"
        if engine.total_bytes:
            amount += f" · {stats.format_bytes(engine.done_bytes)} / {stats.format_bytes(engine.total_bytes)}"
        return [(text, BUSY), *bar(share, max(min(width - len(text) - len(amount), 20), 0)), (amount, VALUE)]
    turn = run.current
    if turn is None:
        return [("no turn yet" if run.engine is not None else "no engine", MUTED)]
    stall = turn.stalled(now_ns)
    if stall is not None:
        return [(f"stalled in {stall.phase} {stats.format_seconds(stall.waited_ms)} · esc stops", BAD)]
    if turn.phase in ("queue", "prefill") and turn.ttft_ms is None:
        done = f"{stats.format_count(turn.prefill_done)}/{stats.format_count(turn.prefill_total)}"
        text = f"{PHASES[turn.phase]} {done} · {stats.format_rate(turn.prefill_tok_s)} tok/s"
        return [(text, BUSY)]
    return None


def _figures_line(run: RunStats, turn: TurnStats, now_ns: int, width: int) -> tuple[list[Piece], int]:
    now = turn.tok_s_now(now_ns)
    tpot = "/".join(stats.format_ms(turn.tpot(q)) for q in (0.5, 0.95, 0.99))
    groups: list[list[Piece]] = [
        [(stats.format_rate(turn.tok_s if now is None else now), STRONG), (" tok/s", MUTED)],
        [("TPOT ", LABEL), (tpot, VALUE)],
        [("TTFT ", LABEL), (stats.format_ms(turn.ttft_ms), VALUE)],
        [("L ", LABEL), (stats.format_ratio(turn.accept_len), VALUE)] if turn.drafted_rounds else [("no draft", MUTED)],
        [("ctx ", LABEL), (stats.format_percent(context_share(run, turn)), VALUE)],
    ]
    pieces: list[Piece] = []
    used = 0
    for group in groups:
        size = sum(cell_len(text) for text, _ in group) + (3 if pieces else 0)
        if used + size > width:
            break
        pieces += ([(" · ", MUTED)] if pieces else []) + group
        used += size
    return pieces, max(width - used - 1, 0)

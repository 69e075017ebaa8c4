"""How the conversation looks: its component classes and their styles, in theme variables only.

Layout code names these classes and nothing else, so a theme or a style sheet of the app changes all of it.
"""

from __future__ import annotations

CLASSES = {
    f"conversation--{name}"
    for name in (
        *("user", "model", "muted", "hint", "rule", "code", "inline-code", "bullet", "quote-bar", "strong", "em", "s"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "error", "cursor", "more"),
    )
}

CSS = """
    MessageList {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        scrollbar-color: $foreground 20%;
        scrollbar-color-hover: $foreground 40%;
        background: $background;
        color: $foreground;
        & > .conversation--user { color: $text-success; text-style: bold; }
        & > .conversation--model { color: $text-primary; text-style: bold; }
        & > .conversation--muted { color: $foreground 55%; }
        & > .conversation--hint { color: $text-accent; }
        & > .conversation--rule { color: $foreground 30%; }
        & > .conversation--code { color: $foreground 90%; }
        & > .conversation--inline-code { color: $text-warning; background: $warning 10%; }
        & > .conversation--bullet { color: $text-primary; }
        & > .conversation--quote-bar { color: $text-secondary; }
        & > .conversation--strong { text-style: bold; }
        & > .conversation--em { text-style: italic; }
        & > .conversation--s { text-style: strike; }
        & > .conversation--h1 { color: $text-primary; text-style: bold underline; }
        & > .conversation--h2 { color: $text-primary; text-style: bold; }
        & > .conversation--h3 { color: $text-secondary; text-style: bold; }
        & > .conversation--h4 { text-style: bold; }
        & > .conversation--h5 { text-style: bold italic; }
        & > .conversation--h6 { text-style: italic; }
        & > .conversation--error { color: $text-error; text-style: bold; }
        & > .conversation--cursor { color: $accent; }
        & > .conversation--more { background: $primary; color: $background; text-style: bold; }
        &:ansi {
            background: ansi_default;
            color: ansi_default;
            & > .conversation--user { color: ansi_green; }
            & > .conversation--model { color: ansi_blue; }
            & > .conversation--muted { color: ansi_bright_black; }
            & > .conversation--hint { color: ansi_magenta; }
            & > .conversation--rule { color: ansi_bright_black; }
            & > .conversation--code { color: ansi_default; }
            & > .conversation--inline-code { color: ansi_yellow; background: ansi_default; }
            & > .conversation--bullet { color: ansi_blue; }
            & > .conversation--h1 { color: ansi_blue; }
            & > .conversation--h2 { color: ansi_blue; }
            & > .conversation--h3 { color: ansi_cyan; }
            & > .conversation--quote-bar { color: ansi_cyan; }
            & > .conversation--error { color: ansi_red; }
            & > .conversation--cursor { color: ansi_magenta; }
            & > .conversation--more { background: ansi_blue; color: ansi_white; }
        }
    }
    """

"""The colours: dark, light, and `ansi`, which uses the terminal's own sixteen.

Meaning never hangs on colour alone, so all three also read without any (NO_COLOR).
"""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

_SHARED = {
    "block-cursor-text-style": "none",
    "input-cursor-text-style": "none",
}

DARK = Theme(
    name="lingchat-dark",
    primary="#7aa2c8",
    secondary="#9a8fc0",
    accent="#e0b26a",
    foreground="#d5d8dc",
    background="#15181c",
    surface="#1b1f24",
    panel="#242a31",
    success="#8fb573",
    warning="#dfa35b",
    error="#d9736d",
    dark=True,
    variables={
        **_SHARED,
        "quiet": "#878f99",
        "faint": "#555d67",
        "border": "#3a424c",
        "border-blurred": "#2a3038",
        "input-cursor-background": "#d5d8dc",
        "input-cursor-foreground": "#15181c",
        "input-selection-background": "#7aa2c8 35%",
        "scrollbar": "#333a43",
        "scrollbar-hover": "#48515c",
        "scrollbar-active": "#7aa2c8",
        "scrollbar-background": "#15181c",
        "scrollbar-background-hover": "#15181c",
        "scrollbar-background-active": "#15181c",
        "scrollbar-corner-color": "#15181c",
    },
)

LIGHT = Theme(
    name="lingchat-light",
    primary="#2f6697",
    secondary="#66559a",
    accent="#9a5f00",
    foreground="#23272c",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e8e5de",
    success="#3f7a2d",
    warning="#a05a00",
    error="#b3362f",
    dark=False,
    variables={
        **_SHARED,
        "quiet": "#6f6a60",
        "faint": "#a8a294",
        "border": "#c9c4b8",
        "border-blurred": "#dcd8cd",
        "input-cursor-background": "#23272c",
        "input-cursor-foreground": "#fbfaf7",
        "input-selection-background": "#2f6697 25%",
        "scrollbar": "#d3cec2",
        "scrollbar-hover": "#bbb5a7",
        "scrollbar-active": "#2f6697",
        "scrollbar-background": "#fbfaf7",
        "scrollbar-background-hover": "#fbfaf7",
        "scrollbar-background-active": "#fbfaf7",
        "scrollbar-corner-color": "#fbfaf7",
    },
)

# Of other themes: what is said quietly, and what hardly at all.
DEFAULTS = {"quiet": "#8a8a8a", "faint": "#6a6a6a"}

ANSI = Theme(
    name="lingchat-ansi",
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_magenta",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    variables={
        **BUILTIN_THEMES["ansi-dark"].variables,
        **_SHARED,
        "quiet": "ansi_bright_black",
        "faint": "ansi_bright_black",
        "border": "ansi_bright_black",
        "border-blurred": "ansi_bright_black",
    },
)

OWN = (DARK, LIGHT, ANSI)
THEMES: dict[str, str] = {"dark": DARK.name, "light": LIGHT.name, "ansi": ANSI.name}


def is_theme(name: str) -> bool:
    """Whether the app has a theme of that name: one of ours, or any that Textual brings."""
    return THEMES.get(name, name) in {*BUILTIN_THEMES, *(theme.name for theme in OWN)}

"""The still that a demo ends in: the screen as SVG, and as PNG where the system has a font to draw it with.

Knows Textual's export; knows nothing of lanes.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from lingchat.errors import DiskError
from lingchat.machine import output

# Fonts by address: a still must be whole without a network, so the viewer's own monospace font is used.
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
FONTS = (
    "DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, Noto Sans Mono, Ubuntu Mono, Cascadia Mono, Adwaita Mono, Hack, "
    "FreeMono, Nimbus Mono PS, Courier New"
)
PNG_WIDTH = 1600
LOADED: dict[str, Any] = {}  # which fonts the renderer loads: those of the system
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text y="15" font-family="{families}">{letter}</text></svg>'
)
NO_FONT = "no PNG, since this system has no font to draw it with (install one, such as DejaVu Sans Mono)"


def plain_svg(svg: str) -> str:
    """The SVG without fonts from elsewhere."""
    return _with_fonts(_FONT_FACE.sub("", svg), f"{FONTS}, monospace")


def _with_fonts(svg: str, families: str) -> str:
    return re.sub(r"font-family: ?(Fira Code|DejaVu Sans Mono)[^;}\"]*", f"font-family: {families}", svg)


def save_still(svg: str, folder: Path, name: str = "demo") -> tuple[list[Path], str]:
    """Write `<name>.svg` and, if there is a font, `<name>.png`; the files, and why there is no PNG ("" when there is)."""
    svg = plain_svg(svg)
    files = [folder / f"{name}.svg"]
    _write(files[0], svg.encode())
    png = _png(svg)
    if png is None:
        return files, NO_FONT
    files.append(folder / f"{name}.png")
    _write(files[1], png)
    return files, ""


def _png(svg: str) -> bytes | None:
    """The picture, None without a font: a name that the system has not draws nothing, and says nothing."""
    import resvg_py

    def drawn(letter: str, families: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=_PROBE.format(families=families, letter=letter), **LOADED))

    for families in (FONTS, output("fc-match", "-f", "%{family[0]}", "monospace")):
        # The screen's SVG gives every run of letters its width, so that any font keeps the columns.
        if families and drawn("M", families) != drawn(" ", families):
            return bytes(resvg_py.svg_to_bytes(svg_string=_with_fonts(svg, families), width=PNG_WIDTH, **LOADED))
    return None


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.chmod(new, 0o644)
        os.replace(new, path)
    except OSError as problem:
        raise DiskError(f"cannot write {path}: {problem.strerror}") from problem

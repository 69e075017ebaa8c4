"""The still that a demo ends in: the screen as SVG and, where a renderer is installed, as PNG.

Knows Textual's export; knows nothing of lanes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from pathlib import Path

from lingchat.errors import DiskError

# Fonts by address: a still must be whole without a network, so the viewer's own monospace font is used.
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
FONTS = "DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, Noto Sans Mono, Courier New, monospace"
PNG_WIDTH = 1600
NO_RENDERER = "no PNG, since resvg-py is not installed (pip install resvg-py)"
NO_FONT = "no PNG, since no monospace font is installed"


def plain_svg(svg: str) -> str:
    """The SVG without fonts from elsewhere."""
    return re.sub(r"font-family: ?Fira Code(, ?monospace)?", f"font-family: {FONTS}", _FONT_FACE.sub("", svg))


def save_still(svg: str, folder: Path, name: str = "demo") -> tuple[list[Path], str]:
    """Write `<name>.svg` and, if it can be rendered, `<name>.png`; the files, and why there is no PNG ("" when there is)."""
    svg = plain_svg(svg)
    files = [folder / f"{name}.svg"]
    _write(files[0], svg.encode())
    if importlib.util.find_spec("resvg_py") is None:
        return files, NO_RENDERER
    import resvg_py

    def drawn(letter: str) -> bytes:
        probe = f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15" font-family="{FONTS}">{letter}</text></svg>'
        return bytes(resvg_py.svg_to_bytes(svg_string=probe))

    if drawn("M") == drawn(" "):
        return files, NO_FONT
    png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=PNG_WIDTH))
    files.append(folder / f"{name}.png")
    _write(files[1], png)
    return files, ""


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

"""Loading says what does not fit, with the bytes, before any weight is packed."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_ling import write_ling_gguf
from make_models import write_gguf

from lingchat.errors import DoesNotFit
from lingchat.runtime import loading
from lingchat.runtime.loading import Loading, load


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_what_does_not_fit_is_refused_before_a_weight_is_packed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    if kind == "dense":
        write_gguf(path, "qwen3", "Q8_0")
    else:
        write_ling_gguf(path)
    monkeypatch.setattr(loading, "free_bytes", lambda device: 10_000_000)
    monkeypatch.setattr(loading, "build", lambda weights, ops: pytest.fail("it began to pack"))
    parts = r"weights .* GB, state .* GB, latents of" if kind == "hybrid" else r"weights .* GB, context of"
    with pytest.raises(DoesNotFit, match=rf"needs .* of memory \({parts} .* workspace .*0\.01 GB are free"):
        load(path, Loading(threads=1), lambda event: None)

"""Models from the Hugging Face hub, through `huggingface_hub`, into its own cache.

The client runs in a process of its own (this module, run with `-m`): it can be ended at once, and nobody else pays for
importing it. It speaks JSON lines on its standard output: {"done", "total"} in bytes, then {"path"} or {"error"}.

Knows the hub; knows no settings and no other source of models.
"""

from __future__ import annotations

import io
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lingchat.catalog import child
from lingchat.catalog.store import POLL_S, IsCancelled, OnProgress, Progress, ignore, never, stop_if
from lingchat.errors import DiskError, FetchError

# `org/name`, and after a colon a GGUF file of it, or the part of one's name that tells it from the others.
HUB_NAME = re.compile(r"^(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<file>[^:]+))?$")

_WANTED = (
    ".json",
    ".safetensors",
    ".jinja",
    ".model",
    ".txt",
)  # beside the weights: configuration, tokenizer, template


def fetch(name: str, progress: OnProgress = ignore, cancelled: IsCancelled = never) -> Path:
    """The local folder (safetensors) or file (GGUF) of hub model `name`, downloaded as far as it is not there yet.

    Raises `FetchError` (not found, gated, offline, several GGUF files), `DiskError`, and `Cancelled`.
    """
    match = HUB_NAME.match(name)
    if match is None:
        raise FetchError(f"`{name}` is no hub name; those look like `org/name` or `org/name:file.gguf`.")
    command = [sys.executable, "-P", "-m", "lingchat.catalog.hub", match["repo"], match["file"] or ""]
    with tempfile.TemporaryFile() as log:
        client = child.start(command, subprocess.PIPE, log)
        try:
            said = _follow(client, match["repo"], progress, cancelled)
        finally:
            child.end(client)
        if "path" in said:
            return Path(said["path"])
        if "error" in said:
            kind = DiskError if said.get("kind") == "disk" else FetchError
            raise kind(said["error"])
        log.seek(0)
        last = log.read().decode(errors="replace").strip().rpartition("\n")[2][:200]
    raise FetchError(f"{name} could not be fetched: the hub's client ended with status {client.returncode} ({last}).")


def _follow(client: subprocess.Popen[bytes], repo: str, progress: OnProgress, cancelled: IsCancelled) -> dict[str, Any]:
    """Pass progress on until the client's last word, which is returned; empty when it left without one."""
    progress(Progress("download", 0, 0, f"asking the hub for {repo}"))
    for said in _lines(client.stdout, cancelled):
        if "done" not in said:
            return said
        progress(Progress("download", said["done"], said["total"], f"downloading {repo}"))
    client.wait()
    return {}


def _lines(pipe: IO[bytes] | None, cancelled: IsCancelled) -> Iterator[dict[str, Any]]:
    """JSON objects as they come; asks `cancelled` all the while."""
    assert pipe is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            stop_if(cancelled)
            if not selector.select(POLL_S):
                continue
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)


# The client's side


def _main(repo: str, want: str) -> int:
    child.leave_with_caller()
    from huggingface_hub import errors

    try:
        _say(path=_download(repo, want))
        return 0
    except FetchError as error:
        _say(error=str(error))
    except errors.GatedRepoError:
        _say(error=f"{repo} is gated: accept its terms on the hub, then log in with `hf auth login` or set HF_TOKEN.")
    except errors.RepositoryNotFoundError:
        _say(error=f"The hub has no model {repo}, or it is private: check the name, or log in with `hf auth login`.")
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError):
        _say(error=f"{repo} is not on this machine and the hub could not be reached (HF_HUB_OFFLINE, or no network).")
    except errors.HfHubHTTPError as error:
        _say(error=f"{repo} could not be fetched from the hub: {_line(error)}.")
    except OSError as error:
        full = "[Errno 28]" in str(error) or error.errno == 28
        if full:
            _say(error=f"The disk is full: {repo} does not fit. Free some space, or set HF_HOME.", kind="disk")
        else:
            _say(error=f"{repo} could not be fetched from the hub: {_line(error)}.")
    except Exception as error:  # the client's network library has errors of its own; the caller must hear one sentence
        _say(error=f"{repo} could not be fetched: the hub could not be reached ({_line(error)}).")
    return 1


def _download(repo: str, want: str) -> str:
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi(library_name="lingchat").model_info(repo, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    files = choose(repo, list(sizes), want)
    counter = _bytes_bar(sum(sizes[name] for name in files))
    folder = snapshot_download(
        repo, revision=info.sha, allow_patterns=files, tqdm_class=counter, library_name="lingchat"
    )
    _remember_main(Path(folder), str(info.sha))
    weights = next((name for name in files if name.endswith(".gguf")), None)
    return str(Path(folder) / weights if weights else Path(folder))


def _remember_main(snapshot: Path, revision: str) -> None:
    """Note which revision `main` was, as the client does itself when it is asked by branch.

    The files are asked for by revision so that all of them, and their sizes, come from one and the same.
    """
    main = snapshot.parent.parent / "refs" / "main"
    main.parent.mkdir(parents=True, exist_ok=True)
    main.write_text(revision)


def choose(repo: str, names: list[str], want: str) -> list[str]:
    """The files of a repository that make the model `want`, "" meaning the only one there is.

    Raises `FetchError` when nothing or more than one thing fits.
    """
    ggufs = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    if want:
        ggufs = [name for name in ggufs if name == want] or [name for name in ggufs if want.lower() in name.lower()]
    elif any(name.endswith(".safetensors") and "/" not in name for name in names):
        return [name for name in names if "/" not in name and name.endswith(_WANTED)]
    models = sorted({re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", name) for name in ggufs})
    if len(models) == 1:
        return sorted(ggufs)
    if models:
        raise FetchError(
            f"{repo} holds several models: say which, as in `{repo}:{models[0]}`. There are: {', '.join(models)}."
        )
    weights = f"no file `{want}`" if want else "neither safetensors nor GGUF weights"
    raise FetchError(f"{repo} has {weights}.")


def _bytes_bar(total: int) -> type:
    """A progress bar class for the client that draws nothing and says how many bytes have arrived."""
    from tqdm.auto import tqdm

    bars: list[Any] = []
    last = 0.0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "file": _Nowhere(), "disable": False})
            if self.unit == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal last
            drawn: bool | None = super().update(n)
            # The client may count bytes twice, as they come over the wire and as files take shape: the larger is true.
            if self.unit == "B" and time.monotonic() - last >= POLL_S:
                last = time.monotonic()
                _say(done=min(total, int(max(bar.n for bar in bars))), total=total)
            return drawn

    return Bar


class _Nowhere(io.TextIOBase):
    """Where the client's progress bars are drawn."""

    def write(self, text: str) -> int:
        return len(text)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(_main(*sys.argv[1:]))

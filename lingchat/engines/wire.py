"""What crosses the pipe between a front end and its worker: length-prefixed msgpack frames.

A frame is four bytes of little-endian length and one message. Both sides are of one version, since one starts the
other. No torch.
"""

from __future__ import annotations

import struct

import msgspec

from lingchat.engines.api import ChatRequest, ModelInfo
from lingchat.events import AnyEvent

_LENGTH = struct.Struct("<I")


class Options(msgspec.Struct, frozen=True):
    """How a worker loads its model; sent as its first frame."""

    model: str | None = None  # None: the default model
    dtype: str | None = None  # None: the engine chooses
    threads: int | None = None
    context: int | None = None
    device: str = "auto"  # auto, cpu or cuda; the worker decides what auto is, since only it may ask torch
    native: bool = True  # False: not even where native code could serve, for comparisons


class Chat(msgspec.Struct, frozen=True, tag="chat"):
    id: int
    request: ChatRequest
    accepted_ns: int  # when the front end handed it over


class Count(msgspec.Struct, frozen=True, tag="count"):
    id: int
    request: ChatRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    id: int


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    pass


class Load(msgspec.Struct, frozen=True, tag="load"):
    options: Options


Command = Load | Chat | Count | Cancel | Quit


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    """An event of request `id`, or of the engine itself (id 0)."""

    id: int
    event: AnyEvent


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    id: int
    tokens: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A count, or the load itself (id 0), could not be done."""

    id: int
    code: str
    message: str


Report = Happened | Counted | Ready | Failed

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(Command)
_report_decoder = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Report) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes in, whole frames out, whatever way they were cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer, bodies, at = self._buffer, [], 0
        buffer += data
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            start = at + _LENGTH.size
            if len(buffer) < start + length:
                break
            at = start + length
            bodies.append(bytes(buffer[start:at]))
        del buffer[:at]
        return bodies


def read_command(body: bytes) -> Command:
    command: Command = _command_decoder.decode(body)
    return command


def read_report(body: bytes) -> Report:
    report: Report = _report_decoder.decode(body)
    return report

"""Which back end carries a model: native code on a CPU where its library is there, torch elsewhere.

torch is imported only when it is chosen: that alone takes longer than all else of a native start.
"""

from __future__ import annotations

from collections.abc import Callable

from lingchat.architectures.read import ModelConfig
from lingchat.architectures.usual import NATIVE_DTYPE, not_native
from lingchat.events import AnyEvent, Warn, now_ns
from lingchat.kernels.cpu import library
from lingchat.kernels.cpu.native import Native
from lingchat.runtime.ops.protocol import Ops

Emit = Callable[[AnyEvent], None]


def find_native(config: ModelConfig, device: str, dtype: str, emit: Emit) -> Native | None:
    """The native library, where it can serve this model, device and precision. Where it could but is not there, `emit`
    tells why; and it is built in the background where that is possible, for the next start."""
    if device != "cpu" or dtype != NATIVE_DTYPE:
        return None
    missing = not_native(config)
    if missing:
        text = f"Native CPU code has no {missing}; torch computes instead, more slowly."
        emit(Warn(t_ns=now_ns(), code="native", message=text))
        return None
    found = library.status()
    if found.native is not None:
        return found.native
    text = f"There is no native CPU code ({found.why}); torch computes instead, more slowly."
    if found.compiler and not found.failed:
        library.build_in_background(lambda result: None)
        text = f"{text} The code is being built in the background, for the next start."
    emit(Warn(t_ns=now_ns(), code="native", message=text))
    return None


def open_ops(native: Native | None, device: str, dtype: str, threads: int, *, fp32_gate: bool = True) -> Ops:
    """A back end with nothing in it, on `threads` threads of the host."""
    if native is not None:
        from lingchat.runtime.ops.native_ops import NativeOps

        return NativeOps(native, threads)
    from lingchat.runtime.ops.torch_ops import TorchOps

    ops = TorchOps(dtype, device, fp32_gate=fp32_gate)
    ops.use_threads(threads)
    return ops

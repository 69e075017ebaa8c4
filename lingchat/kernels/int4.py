"""Four-bit matrices of experts as torch's CPU product takes them: never decoded, read at 5 bits a value.

Q4_0, Q4_1, Q4_K and I4 all say (q - 8) * scale + offset of 32 values of a row, q in 0..15. The product wants the very
nibbles, in another order, and scale and offset in bf16; it rounds activations to bf16, adds in fp32 and rounds each
result once to bf16, as the product with int8 rows does. Packing is exact but for the rounded scales and offsets.

The order is torch's own matter and differs between processors, so what is packed never leaves the process. N rows are
taken a block at a time (32 with AVX2, 64 with AVX-512). A block of K columns is K times half a block of bytes: byte d
of a column has the nibble of the block's row d below, and that of row d + half a block above. Elsewhere torch has the
product in another order and without vectors (15 times slower than with them): there experts stay as their file has
them.

A 512 x 1536 matrix of Q4_0, ms of one thread (EPYC, AVX2, torch 2.13): decoding it and an fp32 product take 0.58 for
one row, 0.68 for four and 1.3 for 32, this product 0.13, 0.15 and 1.2, and 0.07 for one row with two threads. On a Xeon
with AVX-512 and torch 2.11 one row takes 0.058. Packing takes 0.65 (torch's own 1.2 to 1.9), decoding 0.5.
Ling-3.0-tiny's shape in Q4_0 with two threads, in turns with decoding: 0.136 s a token where it took 0.36, prefill of 64
tokens 2.1 s in both, loading 9.3 s where it took 4.7. Tiny random models of Q4_0 and Q4_1 diverge from fp32 (mean KL of
128 positions, six seeds each) 1.03 and 1.01 times as much as int8 with decoded experts does.
Bytes read of a matrix: 5/8 a value, once for every four rows. Knows tensors, no models.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lingchat.kernels.packed import Blocks
from lingchat.kernels.quant import field, k_scales

GROUP = 32  # values of a row that share a scale
_ROWS = 64  # rows of an expert are whole blocks on every processor, so that memory can be planned without asking which
_FEW = 32  # rows beyond which it pays to make numbers of a matrix first
_UNIT = torch.complex128  # 16 bytes of a column as one element, which torch moves at once
_TYPES = ("Q4_0", "Q4_1", "Q4_K", "I4")


@dataclass(frozen=True)
class Int4Weight:
    """W [N, K] in torch's order: q uint8 [N, K / 2], scales bf16 [K / 32, N, 2], a scale and an offset each."""

    q: torch.Tensor
    scales: torch.Tensor

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x fp32 [T, K] W^T -> fp32 [T, N]. Up to _FEW rows a row's bits do not depend on T: each has sums of its own,
        in one order. More rows are not rounded to bf16, and multiplied by a W made to numbers."""
        if x.shape[0] > _FEW:
            return x @ self._columns()
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), self.q, GROUP, self.scales)
        return y.float()

    def dequantize(self) -> torch.Tensor:
        """W as the product sees it: fp32 [N, K]."""
        return self._columns().t()

    def _columns(self) -> torch.Tensor:
        """W^T, fp32 [K, N]: the order in which it lies but for the blocks, and so the quicker one to make."""
        rows, block = len(self.q), _block()
        assert block is not None
        columns = 2 * self.q.shape[1]
        bytes_ = self.q.view(-1).view(_UNIT).view(rows // block, columns, -1).transpose(0, 1).contiguous()
        nibbles = [part.view(_UNIT) for part in (bytes_.view(torch.uint8) & 15, bytes_.view(torch.uint8) >> 4)]
        q = torch.stack(nibbles, dim=2).view(torch.uint8).float()
        scale, offset = self.scales.permute(2, 0, 1).float().contiguous()[:, :, None]
        return q.view(-1, GROUP, rows).sub_(8).mul_(scale).add_(offset).view(columns, rows)


@dataclass(frozen=True)
class Int4Stack:
    """E matrices [N, K]: q uint8 [E, N, K / 2], scales bf16 [E, K / 32, N, 2]."""

    q: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def takes(blocks: Blocks) -> bool:
        """Whether `blocks` can be packed so, and torch has a fast product for it on this machine."""
        rows, columns = blocks.shape
        if blocks.type not in _TYPES or rows % _ROWS or columns % GROUP or _block() is None:
            return False
        return blocks.scales is None or columns // blocks.scales.shape[-1] % GROUP == 0

    @classmethod
    def pack(cls, blocks: Blocks) -> Int4Stack:
        """All experts, each by one core: its intermediates stay in the cache, and no core waits for another."""
        count, (rows, columns) = len(blocks.data), blocks.shape
        q = torch.empty(count, rows, columns // 2, dtype=torch.uint8)
        scales = torch.zeros(count, columns // GROUP, rows, 2, dtype=torch.bfloat16)
        block = _block()
        assert block is not None

        @torch.inference_mode()  # a thread is not in its caller's mode
        def one(e: int) -> None:
            nibbles, run, scale, offset = _read(blocks, e)
            _interleave(nibbles, run, block, q[e])
            scales[e, :, :, 0] = scale.t()
            if offset is not None:
                scales[e, :, :, 1] = offset.t()

        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(one, range(count)))
        torch.set_num_threads(threads)
        return cls(q, scales)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scales.nbytes

    def one(self, expert: int) -> Int4Weight:
        return Int4Weight(self.q[expert], self.scales[expert])

    def dense(self, expert: int) -> torch.Tensor:
        return self.one(expert).dequantize()

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """ids int64 [k] -> fp32 [k, N, K]; on the CPU, where reading them waits for nothing."""
        return torch.stack([self.dense(expert) for expert in ids.tolist()])


def _read(blocks: Blocks, expert: int) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor | None]:
    """An expert's nibbles, uint8 [N, K / 2]; how many low ones come before their high ones in a row; scales and
    offsets, fp32 [N, K / 32], of q - 8. No offsets: none but 0."""
    (rows, columns), data = blocks.shape, blocks.data[expert]
    if blocks.scales is not None:
        scale = blocks.scales[expert].float()
        return data.view(rows, -1), 1, scale.repeat_interleave(columns // GROUP // scale.shape[1], dim=1), None
    if blocks.type == "Q4_K":
        b = data.view(-1, 144)
        scale, minimum = k_scales(b[:, 4:16])
        scale = field(b, 0, 2, torch.float16)[:, :, None] * scale
        offset = 8 * scale - field(b, 2, 2, torch.float16)[:, :, None] * minimum
        return b[:, 16:].reshape(rows, -1), 32, scale.view(rows, -1), offset.view(rows, -1)
    head = 2 if blocks.type == "Q4_0" else 4
    b = data.view(-1, head + 16)
    nibbles, scale = b[:, head:].reshape(rows, -1), field(b, 0, 2, torch.float16).view(rows, -1)
    if blocks.type == "Q4_0":
        return nibbles, 16, scale, None
    return nibbles, 16, scale, 8 * scale + field(b, 2, 2, torch.float16).view(rows, -1)


def _interleave(nibbles: torch.Tensor, run: int, block: int, out: torch.Tensor) -> None:
    """Nibbles uint8 [N, K / 2], `run` low ones before their high ones in a row, into `out`, in torch's order."""
    rows, width = nibbles.shape
    first, second = nibbles.view(rows // block, 2, block // 2, width).unbind(1)
    places = out.view(-1).view(_UNIT).view(rows // block, width // run, 2, run, -1)
    for half, joined in enumerate(((first & 15) | (second << 4), (first >> 4) | (second & 0xF0))):
        columns = joined.view(-1, width).t().contiguous().view(_UNIT)
        places[:, :, half] = columns.view(width // run, run, rows // block, -1).permute(2, 0, 1, 3)


@functools.cache
def _block() -> int | None:
    """Rows of a block where torch's product has vectors, found by packing a few numbers; None where it has none."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(16, (_ROWS, GROUP), dtype=torch.int32, generator=generator)
    theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1).view(-1)
    nibbles, ours = (q[:, ::2] | (q[:, 1::2] << 4)).to(torch.uint8), torch.empty(_ROWS, GROUP // 2, dtype=torch.uint8)
    for block in (32, 64):
        _interleave(nibbles, 1, block, ours)
        if torch.equal(ours.view(-1), theirs):
            return block
    return None

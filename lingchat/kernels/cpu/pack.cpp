// Packing: the undecoded bytes of a weight file to the panels of types.h. No instruction set's own code, but loops that
// compilers make vectors of.
//
// A row of a panel is packed TILE columns at a time: `unpack` brings any quantised type into one form (a byte a quant,
// fp32 scales, a `Tile`), float types are quantised into it, and `put` writes the tile into the panel, which stays in
// the first cache while its 16 rows are written. F32 and F16 panels are decoded numbers instead.
//
// Bytes read: the source once, each row of a panel from left to right; written: the panels once. Threads take panels
// as they become free, and what a panel holds depends on its rows alone: the same bytes for every thread count.
#include "pack.h"

#include <atomic>

#include "pool.h"

#define LC_EXPORT extern "C" __attribute__((visibility("default")))

namespace lc {
namespace {

constexpr int64_t TILE = 1024;                // columns at a time; a multiple of every format's block
constexpr int64_t FP8_BLOCK = 128;            // rows and columns that share a scale
constexpr int64_t CHUNK_BYTES = 64 * 1024;    // of the source, that a thread takes at a time: an expert is several

// Rows of a block type in the form of their kind: q or u, d for each block (W6: for each half), m where the kind has it.
struct Tile {
  uint8_t u[TILE];
  float d[TILE / BLOCK * 2];
  float m[TILE / BLOCK];
};

typedef void (*Unpack)(const uint8_t* in, int64_t columns, Tile& tile);
typedef void (*Read)(const uint8_t* in, int64_t columns, float* out);

struct Format {
  const char* name;
  int64_t values, bytes;  // of a block
  int64_t kind;           // that the type becomes
  Unpack unpack;          // quantised types
  Read read;              // others
};

inline float bits_float(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
inline uint32_t float_bits(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

// ------------------------------------------------------------------------------------------------ the types of files

void read_f32(const uint8_t* in, int64_t columns, float* out) { memcpy(out, in, sizeof(float) * (size_t)columns); }

void read_f16(const uint8_t* in, int64_t columns, float* out) {
  for (int64_t k = 0; k < columns; k++) out[k] = half_float(short_at(in + 2 * k));
}

void read_bf16(const uint8_t* in, int64_t columns, float* out) {
  for (int64_t k = 0; k < columns; k++) out[k] = bits_float((uint32_t)short_at(in + 2 * k) << 16);
}

struct Fp8Table {
  float value[256];
  Fp8Table() {
    for (uint32_t c = 0; c < 256; c++) {
      uint32_t exponent = c >> 3 & 15, fraction = c & 7;
      uint32_t bits = (exponent + 120) << 23 | fraction << 20;
      float magnitude = exponent ? bits_float(bits) : (float)fraction * 0.001953125f;  // 2^-9
      if ((c & 127) == 127) magnitude = bits_float(0x7fc00000);
      value[c] = c & 128 ? -magnitude : magnitude;
    }
  }
};
const Fp8Table fp8;

void read_fp8(const uint8_t* in, int64_t columns, float* out) {
  for (int64_t k = 0; k < columns; k++) out[k] = fp8.value[in[k]];
}

// 16 bytes of nibbles: the low ones are the first half of 32 columns, the high ones the second.
inline void halves(const uint8_t* in, uint8_t* u) {
  uint8_t byte[16];
  memcpy(byte, in, 16);
  for (int i = 0; i < 16; i++) u[i] = byte[i] & 15;
  for (int i = 0; i < 16; i++) u[16 + i] = byte[i] >> 4;
}

// Bit i of 32 is 16 in byte i: eight at a time, by a product that copies eight bits into each of eight bytes.
inline void add_fifth_bits(const uint8_t* in, uint8_t* u) {
  for (int i = 0; i < 4; i++) {
    uint64_t spread = (in[i] * 0x0101010101010101u) & 0x8040201008040201u, quants;
    memcpy(&quants, u + 8 * i, 8);
    quants |= ((spread + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
    memcpy(u + 8 * i, &quants, 8);
  }
}

void unpack_q8_0(const uint8_t* in, int64_t columns, Tile& tile) {
  for (int64_t b = 0; b < columns / 32; b++, in += 34) {
    tile.d[b] = half_float(short_at(in));
    memcpy(tile.u + 32 * b, in + 2, 32);
  }
}

template <bool affine, bool fifth>
void unpack_nibbles(const uint8_t* in, int64_t columns, Tile& tile) {  // Q4_0, Q4_1, Q5_0, Q5_1
  constexpr int bits = affine ? 4 : 2, nibbles = bits + (fifth ? 4 : 0);
  for (int64_t b = 0; b < columns / 32; b++, in += nibbles + 16) {
    tile.d[b] = half_float(short_at(in));
    if (affine) tile.m[b] = half_float(short_at(in + 2));
    halves(in + nibbles, tile.u + 32 * b);
    if (fifth) add_fifth_bits(in + bits, tile.u + 32 * b);
  }
}

// Twelve bytes to eight 6-bit scales and eight 6-bit minima (quant.py tells which bits are where).
inline void k_scales(const uint8_t* in, float d, float dmin, float* scales, float* minima) {
  for (int j = 0; j < 4; j++) {
    uint8_t first = in[j], second = in[4 + j], third = in[8 + j];
    scales[j] = d * (float)(first & 63);
    scales[4 + j] = d * (float)((third & 15) | (first >> 6) << 4);
    minima[j] = -(dmin * (float)(second & 63));
    minima[4 + j] = -(dmin * (float)((third >> 4) | (second >> 6) << 4));
  }
}

template <bool fifth>
void unpack_k(const uint8_t* in, int64_t columns, Tile& tile) {  // Q4_K, Q5_K
  for (int64_t k = 0; k < columns; k += 256, in += fifth ? 176 : 144) {
    k_scales(in + 4, half_float(short_at(in)), half_float(short_at(in + 2)), tile.d + k / 32, tile.m + k / 32);
    const uint8_t* nibbles = in + (fifth ? 48 : 16);
    uint8_t bits[32];
    memcpy(bits, in + 16, 32);
    for (int j = 0; j < 4; j++) {
      uint8_t byte[32], *u = tile.u + k + 64 * j;
      memcpy(byte, nibbles + 32 * j, 32);
      const uint8_t low = (uint8_t)(1 << 2 * j), high = (uint8_t)(2 << 2 * j);
      for (int i = 0; i < 32; i++) u[i] = (uint8_t)((byte[i] & 15) | (fifth && (bits[i] & low) ? 16 : 0));
      for (int i = 0; i < 32; i++) u[32 + i] = (uint8_t)(byte[i] >> 4 | (fifth && (bits[i] & high) ? 16 : 0));
    }
  }
}

void unpack_q6_k(const uint8_t* in, int64_t columns, Tile& tile) {
  for (int64_t k = 0; k < columns; k += 256, in += 210) {
    const float d = half_float(short_at(in + 208));
    for (int j = 0; j < 16; j++) tile.d[k / 16 + j] = d * (float)(int8_t)in[192 + j];
    for (int h = 0; h < 2; h++) {
      uint8_t low[64], pairs[32], *u = tile.u + k + 128 * h;
      memcpy(low, in + 64 * h, 64);
      memcpy(pairs, in + 128 + 32 * h, 32);
      for (int i = 0; i < 32; i++) u[i] = (uint8_t)((low[i] & 15) | (pairs[i] << 4 & 48));
      for (int i = 0; i < 32; i++) u[32 + i] = (uint8_t)((low[32 + i] & 15) | (pairs[i] << 2 & 48));
      for (int i = 0; i < 32; i++) u[64 + i] = (uint8_t)(low[i] >> 4 | (pairs[i] & 48));
      for (int i = 0; i < 32; i++) u[96 + i] = (uint8_t)(low[32 + i] >> 4 | (pairs[i] >> 2 & 48));
    }
  }
}

void unpack_i4(const uint8_t* in, int64_t columns, Tile& tile) {  // its scales lie elsewhere
  for (int64_t i = 0; i < columns / 2; i++) {
    tile.u[2 * i] = in[i] & 15;
    tile.u[2 * i + 1] = in[i] >> 4;
  }
}

const Format FORMATS[] = {
    {"F32", 1, 4, W8, nullptr, read_f32},
    {"F16", 1, 2, W8, nullptr, read_f16},
    {"BF16", 1, 2, W8, nullptr, read_bf16},
    {"F8_E4M3", 1, 1, W8, nullptr, read_fp8},
    {"Q8_0", 32, 34, W8, unpack_q8_0, nullptr},
    {"Q4_0", 32, 18, W4Z, unpack_nibbles<false, false>, nullptr},
    {"Q4_1", 32, 20, W4M, unpack_nibbles<true, false>, nullptr},
    {"Q5_0", 32, 22, W5Z, unpack_nibbles<false, true>, nullptr},
    {"Q5_1", 32, 24, W5M, unpack_nibbles<true, true>, nullptr},
    {"Q4_K", 256, 144, W4M, unpack_k<false>, nullptr},
    {"Q5_K", 256, 176, W5M, unpack_k<true>, nullptr},
    {"Q6_K", 256, 210, W6, unpack_q6_k, nullptr},
    {"I4", 8, 4, W4Z, unpack_i4, nullptr},
};

const Format* format_of(const char* name) {
  for (const Format& format : FORMATS)
    if (name && strcmp(format.name, name) == 0) return &format;
  return nullptr;
}

// ------------------------------------------------------------------------------------------------------- one tile

struct Job {
  const Format* format;
  const Format* scale_format;  // null: no scales beside
  const uint8_t *data, *scales;
  int64_t rows, columns;       // of the packed matrix
  int64_t width;               // columns of a row of the source
  int64_t row_bytes, group, kind;
  bool transposed;
  uint8_t* out;
  int64_t units, unit;         // of a thread's work: how many there are, and panels in one
  std::atomic<int64_t> next;
  std::atomic<bool> bad;       // a number that is not finite
};

float scale_at(const Job& job, int64_t index) {
  float scale;
  job.scale_format->read(job.scales + index * job.scale_format->bytes, 1, &scale);
  return scale;
}

const uint8_t* source_at(const Job& job, int64_t row, int64_t column) {
  return job.data + row * job.row_bytes + column / job.format->values * job.format->bytes;
}

// Columns [begin, begin + n) of a row of the source, in the form of its own kind; whole blocks.
void unpack(const Job& job, int64_t row, int64_t begin, int64_t n, Tile& tile) {
  job.format->unpack(source_at(job, row, begin), n, tile);
  if (!job.scale_format) return;
  const int64_t first = row * (job.width / job.group);
  for (int64_t b = 0; b < blocks_of(n); b++) tile.d[b] = scale_at(job, first + (begin + b * BLOCK) / job.group);
}

// The same as numbers: what quant.py's decoders give, bit for bit.
void read(const Job& job, int64_t row, int64_t begin, int64_t n, float* out) {
  const Format& format = *job.format;
  if (format.read) {
    format.read(source_at(job, row, begin), n, out);
    if (!job.scale_format) return;
    const int64_t first = row / FP8_BLOCK * ((job.width + FP8_BLOCK - 1) / FP8_BLOCK);
    for (int64_t k = 0; k < n; k += FP8_BLOCK) {
      const float scale = scale_at(job, first + (begin + k) / FP8_BLOCK);
      const int64_t end = k + FP8_BLOCK < n ? k + FP8_BLOCK : n;
      for (int64_t i = k; i < end; i++) out[i] *= scale;
    }
    return;
  }
  Tile tile;
  unpack(job, row, begin, n, tile);
  const int64_t kind = format.kind;
  const int zero = kind == W4Z ? 8 : kind == W5Z ? 16 : kind == W6 ? 32 : 0;
  for (int64_t k = 0; k < n; k += 16) {
    const float d = tile.d[kind == W6 ? k / 16 : k / 32], m = kind == W4M || kind == W5M ? tile.m[k / 32] : 0.0f;
    const uint8_t* u = tile.u + k;
    if (kind == W8) {
      for (int i = 0; i < 16; i++) out[k + i] = d * (float)(int8_t)u[i];
    } else if (kind == W4M || kind == W5M) {
      for (int i = 0; i < 16; i++) out[k + i] = (float)u[i] * d + m;
    } else {
      for (int i = 0; i < 16; i++) out[k + i] = d * (float)(u[i] - zero);
    }
  }
}

// Numbers (zeros beyond `n`, up to a whole block) as W8: d = max|w| / 127 as fp16, q = w / d to nearest, ties to even.
void quantize(float* w, int64_t n, Tile& tile) {
  const int64_t blocks = blocks_of(n);
  for (int64_t k = n; k < blocks * BLOCK; k++) w[k] = 0.0f;
  float divisors[TILE / BLOCK];
  for (int64_t b = 0; b < blocks; b++) {
    int32_t largest = 0;  // of the bits: ordered as the magnitudes are, and NaN above all
    for (int i = 0; i < BLOCK; i++) {
      const int32_t bits = (int32_t)(float_bits(w[b * BLOCK + i]) & 0x7fffffff);
      largest = bits > largest ? bits : largest;
    }
    tile.d[b] = bits_float((uint32_t)largest);
  }
  for (int64_t b = 0; b < blocks; b++) {
    tile.d[b] = half_float(float_half(tile.d[b] / 127.0f));
    // Weights too small for any scale become 0.
    divisors[b] = bits_float(choose(tile.d[b] == 0.0f, 0x3f800000, float_bits(tile.d[b])));
  }
  for (int64_t b = 0; b < blocks; b++) {
    int8_t* out = reinterpret_cast<int8_t*>(tile.u) + b * BLOCK;
    for (int i = 0; i < BLOCK; i++) {
      // Rounded by a sum whose last bit is 1. Where d was rounded down far, near fp16's end, q reaches 254.
      int32_t q = (int32_t)float_bits(w[b * BLOCK + i] / divisors[b] + 12582912.0f) - 0x4b400000;
      q = q < 127 ? q : 127;
      out[i] = (int8_t)(q > -127 ? q : -127);
    }
  }
}

bool finite(const uint16_t* halves, int64_t n) {
  bool all = true;
  for (int64_t i = 0; i < n; i++) all &= (halves[i] & 0x7c00) != 0x7c00;
  return all;
}

// A tile into row r of a panel, whose block number 0 of the tile is at `block`.
template <int64_t kind>
void put(const Tile& tile, int64_t blocks, int r, uint8_t* block) {
  constexpr int64_t bytes = BLOCK_BYTES[kind];
  uint8_t* at = block + 4 * r;
  for (int64_t b = 0; b < blocks; b++, at += bytes) {
    uint32_t word[8];
    memcpy(word, tile.u + b * BLOCK, 32);
    if (kind == W8) {
      for (int i = 0; i < 8; i++) memcpy(at + 64 * i, word + i, 4);
      continue;
    }
    for (int v = 0; v < 4; v++) {
      uint32_t nibbles = (word[2 * v] & 0x0f0f0f0f) | (word[2 * v + 1] & 0x0f0f0f0f) << 4;
      memcpy(at + 64 * v, &nibbles, 4);
    }
    if (kind == W5Z || kind == W5M) {
      uint32_t fifth = 0;
      for (int i = 0; i < 8; i++) fifth |= (word[i] >> 4 & 0x01010101) << i;
      memcpy(at + 256, &fifth, 4);
    } else if (kind == W6) {
      for (int h = 0; h < 2; h++) {
        uint32_t pairs = 0;
        for (int i = 0; i < 4; i++) pairs |= (word[4 * h + i] >> 4 & 0x03030303) << 2 * i;
        memcpy(at + 256 + 64 * h, &pairs, 4);
      }
    }
  }
}

// Its scales: false where one is not finite.
bool put_scales(int64_t kind, const Tile& tile, int64_t blocks, int r, uint8_t* block) {
  const bool affine = kind == W4M || kind == W5M;
  const int64_t each = kind == W6 ? 2 : 1, bytes = BLOCK_BYTES[kind];
  uint16_t d[TILE / BLOCK * 2], m[TILE / BLOCK];
  for (int64_t i = 0; i < blocks * each; i++) d[i] = float_half(tile.d[i]);
  if (affine)
    for (int64_t b = 0; b < blocks; b++) m[b] = float_half(tile.m[b]);
  uint8_t* at = block + bytes - 2 * PANEL * (affine ? 2 : each) + 2 * r;
  for (int64_t b = 0; b < blocks; b++, at += bytes) {
    memcpy(at, d + b * each, 2);
    if (each == 2) memcpy(at + 2 * PANEL, d + 2 * b + 1, 2);
    if (affine) memcpy(at + 2 * PANEL, m + b, 2);
  }
  return finite(d, blocks * each) && (!affine || finite(m, blocks));
}

typedef void (*Put)(const Tile& tile, int64_t blocks, int r, uint8_t* block);
const Put PUT[] = {put<W8>, put<W4Z>, put<W4M>, put<W5Z>, put<W5M>, put<W6>};

// ------------------------------------------------------------------------------------------------------ one panel

// Numbers `stride` values apart into an F32 or F16 panel: false where one is not finite.
bool put_numbers(int64_t kind, const float* w, int64_t n, int64_t stride, uint8_t* out) {
  uint32_t worst = 0;
  if (kind == F32) {
    for (int64_t k = 0; k < n; k++) {
      uint32_t bits = float_bits(w[k]);
      memcpy(out + 4 * k * stride, &bits, 4);
      worst |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !worst;
  }
  for (int64_t k = 0; k < n; k++) {
    uint16_t bits = float_half(w[k]);
    memcpy(out + 2 * k * stride, &bits, 2);
    worst |= (bits & 0x7c00) == 0x7c00;
  }
  return !worst;
}

bool pack_panel(const Job& job, int64_t panel) {
  const int64_t bytes = panel_bytes(job.kind, job.columns), first = panel * PANEL;
  const int rows = (int)(job.rows - first < PANEL ? job.rows - first : PANEL);
  uint8_t* out = job.out + panel * bytes;
  if (rows < PANEL) memset(out, 0, (size_t)bytes);  // rows beyond: scales of 0
  const bool numbers = job.kind == F32 || job.kind == F16;
  bool good = true;
  for (int64_t begin = 0; begin < job.columns; begin += TILE) {
    const int64_t n = job.columns - begin < TILE ? job.columns - begin : TILE;
    for (int r = 0; r < rows; r++) {
      float w[TILE];
      Tile tile;
      if (numbers) {
        read(job, first + r, begin, n, w);
        const int64_t size = job.kind == F32 ? 4 : 2;
        good &= put_numbers(job.kind, w, n, PANEL, out + (begin * PANEL + r) * size);
        continue;
      }
      if (job.format->unpack && job.kind == job.format->kind) {
        unpack(job, first + r, begin, n, tile);
      } else {
        read(job, first + r, begin, n, w);
        quantize(w, n, tile);
      }
      uint8_t* block = out + begin / BLOCK * BLOCK_BYTES[job.kind];
      PUT[job.kind](tile, blocks_of(n), r, block);
      good &= put_scales(job.kind, tile, blocks_of(n), r, block);
    }
  }
  return good;
}

// Panels [begin, end) of a transposed source, whose rows are the packed matrix's columns: each holds 16 values of
// every panel side by side.
bool pack_transposed(const Job& job, int64_t begin, int64_t end) {
  const int64_t bytes = panel_bytes(job.kind, job.columns), size = job.kind == F32 ? 4 : 2;
  const int64_t last = end * PANEL < job.rows ? end * PANEL : job.rows;
  bool good = true;
  if (last < end * PANEL) memset(job.out + (end - 1) * bytes, 0, (size_t)bytes);
  for (int64_t from = begin * PANEL; from < last; from += TILE) {
    const int64_t n = last - from < TILE ? last - from : TILE;
    for (int64_t column = 0; column < job.columns; column++) {
      float w[TILE];
      read(job, column, from, n, w);
      for (int64_t i = 0; i < n; i += PANEL) {
        uint8_t* out = job.out + (from + i) / PANEL * bytes + column * PANEL * size;
        good &= put_numbers(job.kind, w + i, n - i < PANEL ? n - i : PANEL, 1, out);
      }
    }
  }
  return good;
}

void pack_units(Job& job) {
  const int64_t panels = panels_of(job.rows);
  for (int64_t unit; (unit = job.next.fetch_add(1)) < job.units;) {
    const int64_t begin = unit * job.unit, end = begin + job.unit < panels ? begin + job.unit : panels;
    bool good = true;
    if (job.transposed) good = pack_transposed(job, begin, end);
    for (int64_t panel = begin; !job.transposed && panel < end; panel++) good &= pack_panel(job, panel);
    if (!good) job.bad = true;
  }
}

void take_part(void* job, Team&) { pack_units(*static_cast<Job*>(job)); }

}  // namespace
}  // namespace lc

using namespace lc;

// The kind that a type of a file becomes, with the wish "int8", "f32" or "f16"; -1 for an unknown type or wish.
LC_EXPORT int64_t lc_kind(const char* type, const char* wish) {
  const Format* format = format_of(type);
  if (!format || !wish) return -1;
  if (strcmp(wish, "int8") == 0) return format->kind;
  if (strcmp(wish, "f32") == 0) return F32;
  return strcmp(wish, "f16") == 0 ? (int64_t)F16 : -1;
}

// Packs a matrix into `out`, panels_of(rows) * panel_bytes(kind, columns) bytes, all of them written. `kind` is
// lc_kind's, F32, F16 or (of any type) W8. 0: done. 1: arguments that do not belong together. 2: there is a weight or
// scale that is not finite, or too large for fp16; the panels are of no use then.
LC_EXPORT int lc_pack(Pool* pool, const PackSource* source, int64_t kind, uint8_t* out) {
  const Format* format = source ? format_of(source->type) : nullptr;
  if (!format || !out || !source->data || source->rows < 1 || source->columns < 1) return 1;
  const bool numbers = kind == F32 || kind == F16;
  if (kind != format->kind && kind != W8 && !numbers) return 1;
  if (source->transposed && !numbers) return 1;
  const int64_t width = source->transposed ? source->rows : source->columns;
  const int64_t whole = format->unpack ? (format->values > BLOCK ? format->values : BLOCK) : 1;
  if (width % whole) return 1;
  Job job{};
  const bool nibbles = strcmp(format->name, "I4") == 0;
  if (nibbles || strcmp(format->name, "F8_E4M3") == 0) {
    job.scale_format = format_of(source->scale_type);
    if (!job.scale_format || !job.scale_format->read || job.scale_format->bytes == 1 || !source->scales) return 1;
    if (nibbles && (source->group < BLOCK || source->group % BLOCK || width % source->group)) return 1;
  }
  job.format = format;
  job.data = static_cast<const uint8_t*>(source->data);
  job.scales = static_cast<const uint8_t*>(source->scales);
  job.rows = source->rows;
  job.columns = source->columns;
  job.width = width;
  job.row_bytes = width / format->values * format->bytes;
  job.group = source->group;
  job.kind = kind;
  job.transposed = source->transposed != 0;
  job.out = out;
  const int64_t panels = panels_of(job.rows);
  if (job.transposed) {
    job.unit = 256 / PANEL;  // whole blocks of the source
  } else {
    const int64_t bytes = PANEL * job.row_bytes;
    job.unit = bytes < CHUNK_BYTES ? CHUNK_BYTES / bytes : 1;
  }
  job.units = (panels + job.unit - 1) / job.unit;
  if (pool && job.units > 1) run_on_pool(pool, take_part, &job);
  else pack_units(job);
  return job.bad ? 2 : 0;
}

// A packed matrix as fp32 [rows, columns]; 1 for an unknown kind.
LC_EXPORT int lc_decode(int64_t kind, const uint8_t* data, int64_t rows, int64_t columns, float* out) {
  if (kind < 0 || kind >= KINDS) return 1;
  for (int64_t row = 0; row < rows; row++) decode_row(kind, data, columns, row, out + row * columns);
  return 0;
}

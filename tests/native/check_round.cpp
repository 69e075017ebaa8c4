// A round beside the model: drafts by lookup, the choice of tokens, what is emitted and recorded.
#include <math.h>

#include <algorithm>

#include "cpus.h"
#include "operations.h"

namespace check {
namespace {

using namespace lc;

constexpr int64_t WIDTH = 8, RING = 4;

struct Reply {  // what Python holds for one reply
  explicit Reply(Arena& arena, int64_t capacity)
      : history(arena.array<int32_t>(capacity)),
        length(arena.array<int32_t>(1)),
        left(arena.array<int32_t>(1)),
        done(arena.array<int32_t>(1)),
        count(arena.array<int32_t>(1)),
        accepted(arena.array<int32_t>(1)),
        drafted(arena.array<int32_t>(1)),
        emitted(arena.array<int32_t>(WIDTH)),
        ids(arena.array<int32_t>(WIDTH)),
        draft(arena.array<int32_t>(WIDTH)),
        n(arena.array<int32_t>(1)),
        cursor(arena.of(CursorArgs{history, length, left, done, count, accepted, drafted, emitted})) {}
  int32_t *history, *length, *left, *done, *count, *accepted, *drafted, *emitted, *ids, *draft, *n;
  CursorArgs* cursor;
};

// ---------------------------------------------------------------- lookup

int64_t looked_up(const std::vector<int32_t>& history, int64_t longest, int64_t limit, int64_t left,
                  std::vector<int32_t>& ids) {
  const int64_t last = (int64_t)history.size() - 1;
  int64_t best = -1, most = 1;
  for (int64_t end = 0; end < last; end++) {
    int64_t match = 0;
    while (match < longest && match <= end && history[(size_t)(end - match)] == history[(size_t)(last - match)])
      match++;
    if (match >= most && match >= 2) best = end, most = match;
  }
  if (best < 0) return 0;
  for (int64_t i = best + 1; i <= last && (int64_t)ids.size() < limit; i++) ids.push_back(history[(size_t)i]);
  return std::min((int64_t)ids.size(), std::max((int64_t)0, left - 1));
}

void lookups() {
  const std::string name = "round lookup";
  if (!wanted(name)) return;
  Random random(name);
  uint64_t checksum = hash("", 0);
  Engine engine;
  for (int trial = 0; trial < 400; trial++) {
    const int64_t length = 1 + random.below(trial % 4 ? 40 : 300), letters = 1 + random.below(6),
                  limit = 1 + random.below(WIDTH);
    const int64_t longest = 2 + random.below(6), left = 1 + random.below(12);
    std::vector<int32_t> text;
    for (int64_t i = 0; i < length; i++) text.push_back((int32_t)random.below(letters));
    std::vector<int32_t> expected;
    const int64_t n = looked_up(text, longest, limit, left, expected);
    for (const Isa* isa : isas_here()) {
      engine.isa = isa;
      engine.threads = 1 + trial % 3;
      Arena arena;
      Reply reply(arena, length);  // full to its last place
      memcpy(reply.history, text.data(), text.size() * 4);
      *reply.length = (int32_t)length;
      *reply.left = (int32_t)left;
      engine.run({make("lookup", LookupArgs{reply.cursor, reply.draft, reply.n, longest, limit})}, 1);
      if (*reply.n != n) return failed(name, "%s: %d drafts, not %d (text %d)", isa->name, *reply.n, (int)n, trial);
      if (!std::equal(reply.draft, reply.draft + n, expected.begin()))
        return failed(name, "%s: other drafts (text %d)", isa->name, trial);
      if (!arena.intact()) return failed(name, "%s: written beyond the end of a buffer", isa->name);
    }
    checksum = hash(expected.data(), n * 4, hash(&n, 8, checksum));
  }
  passed(name, checksum);
}

// ---------------------------------------------------------------- the choice of tokens

struct Choice {
  const char* what;
  int64_t vocabulary;
  Sampler sampler;
  int64_t tokens;
};

// Logits of the token at a position: the same whatever came before, so that a text with drafts can be held to one
// without.
void logits_at(const std::string& seed, int64_t position, int64_t vocabulary, float* out) {
  Random random(seed + std::to_string(position));
  for (int64_t i = 0; i < vocabulary; i++) out[i] = random.bell() * 3;
  for (int i = 0; i < 5; i++) out[random.below(vocabulary)] += 8;
  if (position % 3 == 0) {  // equals among the largest
    const float top = 20;
    for (int i = 0; i < 3; i++) out[random.below(vocabulary)] = top;
  }
  for (int64_t i = vocabulary - 3; i < vocabulary; i++) out[i] = -INFINITY;  // beyond the tokenizer's
}

struct Told {
  std::vector<int32_t> text;
  int64_t rounds = 0, accepted = 0;
  int32_t done = 0;
};

// A reply of `tokens`, with `drafts` of which some are right: `truth` is the text.
Told tell(const Choice& c, Engine& engine, int64_t drafts, const std::vector<int32_t>& truth, std::string* wrong) {
  Arena arena;
  const int64_t start = 5, capacity = start + c.tokens + WIDTH, stride = (c.vocabulary + 7) / 8 * 8;
  Reply reply(arena, capacity);
  float* logits = arena.array<float>(WIDTH * stride);
  float* noise = arena.array<float>(stride);
  Sampler* sampler = arena.of(c.sampler);
  int32_t* records = arena.array<int32_t>(RING * (4 + WIDTH));
  Ring* ring = arena.of(Ring{0, RING, WIDTH, records});
  int32_t* prefix = arena.array<int32_t>(1);
  poison_all(reply.history, capacity);
  poison_all(reply.emitted, WIDTH);
  poison_all(records, RING * (4 + WIDTH));
  for (int64_t i = 0; i < start; i++) reply.history[i] = (int32_t)(i * 7 % c.vocabulary);
  *reply.length = *prefix = (int32_t)start;
  *reply.left = (int32_t)c.tokens;
  *reply.done = 0;
  Random random(std::string("drafts of ") + c.what);
  Told told;
  while (!*reply.done) {
    const int64_t length = *reply.length, told_so_far = length - start;
    const int64_t n = std::min(drafts ? 1 + random.below(drafts) : 0, (int64_t)*reply.left - 1);
    poison_all(reply.draft, WIDTH);
    for (int64_t i = 0; i < n; i++) {
      const bool right = told_so_far + i < (int64_t)truth.size() && random.below(4) > 0;
      reply.draft[i] = right ? truth[(size_t)(told_so_far + i)] : (int32_t)random.below(c.vocabulary);
    }
    *reply.n = (int32_t)n;
    poison_all(logits, WIDTH * stride);
    poison_all(noise, stride);
    const int64_t rows =
        engine.run({make("draft_rows", DraftRowsArgs{reply.cursor, reply.draft, reply.n, reply.ids, WIDTH})}, 1);
    if (rows != 1 + n || reply.ids[0] != reply.history[length - 1] || memcmp(reply.ids + 1, reply.draft, (size_t)n * 4))
      *wrong = "rows of the draft";
    for (int64_t r = 0; r < rows; r++) logits_at(c.what, length + r, c.vocabulary, logits + r * stride);
    engine.run({make("accept", AcceptArgs{logits, c.vocabulary, stride, reply.ids, reply.n, sampler, reply.cursor,
                                          noise, rows == 1 && told.rounds % 2}),
                make("advance", AdvanceArgs{prefix, reply.count}), make("emit", EmitArgs{reply.cursor, ring})},
               rows);
    const int32_t* record = records + told.rounds % RING * (4 + WIDTH);
    if (*reply.count < 1 || *reply.count > rows || *reply.length != length + *reply.count || *prefix != *reply.length) {
      *wrong = "count of a round";
      return told;
    }
    if (ring->written != told.rounds + 1 || record[0] != *reply.count || record[1] != n ||
        record[2] != *reply.accepted || record[3] != *reply.done ||
        memcmp(record + 4, reply.history + length, (size_t)*reply.count * 4)) {
      *wrong = "record of a round";
    }
    told.rounds++;
    told.accepted += *reply.accepted;
  }
  told.text.assign(reply.history + start, reply.history + *reply.length);
  told.done = *reply.done;
  if (*reply.done == 2 && (*reply.left != 0 || (int64_t)told.text.size() != c.tokens)) *wrong = "tokens left";
  if (!arena.intact()) *wrong = "memory beyond a buffer's end";
  return told;
}

void choose(const Choice& c) {
  const std::string name = std::string("round accept ") + c.what;
  if (!wanted(name)) return;
  Engine engine;
  engine.isa = isas_here()[0];
  std::string wrong;
  const Told expected = tell(c, engine, 0, {}, &wrong);
  if (!wrong.empty()) return failed(name, "%s", wrong.c_str());
  for (const Isa* isa : isas_here()) {
    engine.isa = isa;
    for (engine.threads = 1; engine.threads <= 4; engine.threads++) {
      for (int64_t drafts : {0, 3, 7}) {
        if (quick && (engine.threads + drafts) % 3) continue;
        const Told got = tell(c, engine, drafts, expected.text, &wrong);
        if (!wrong.empty())
          return failed(name, "%s, %d threads, %d drafts: %s", isa->name, (int)engine.threads, (int)drafts,
                        wrong.c_str());
        if (got.text != expected.text || got.done != expected.done) {
          size_t at = 0;
          while (at < got.text.size() && at < expected.text.size() && got.text[at] == expected.text[at]) at++;
          return failed(name, "%s, %d threads, %d drafts: another text from token %d on", isa->name,
                        (int)engine.threads, (int)drafts, (int)at);
        }
        if (drafts && c.tokens > 8 && got.accepted == 0) return failed(name, "no draft was accepted");
      }
    }
  }
  for (int32_t id : expected.text)
    if (id < 0 || id >= c.vocabulary - 3) return failed(name, "token %d", id);
  passed(name, hash(expected.text.data(), (int64_t)expected.text.size() * 4));
}

// Logits that are no numbers: some token comes, none beyond the vocabulary, and nobody waits for ever.
void strange_logits() {
  const std::string name = "round accept strange logits";
  if (!wanted(name)) return;
  Engine engine;
  for (const Isa* isa : isas_here()) {
    for (int64_t kind = 0; kind < 4; kind++) {
      for (int64_t sampled = 0; sampled < 3; sampled++) {
        Arena arena;
        const int64_t vocabulary = 9001, stride = 9008;
        Reply reply(arena, 16);
        float* logits = arena.array<float>(stride);
        float* noise = arena.array<float>(stride);
        Sampler* sampler = arena.of(Sampler{sampled ? 0.7 : 0, sampled > 1 ? 0.9 : 1, 0, sampled > 1 ? 1.1 : 1,
                                            sampled > 1 ? 40 : 0, 3, 0, nullptr});
        const float values[4] = {(float)NAN, -INFINITY, INFINITY, 0};
        for (int64_t i = 0; i < vocabulary; i++) logits[i] = kind == 3 ? (i % 2 ? (float)NAN : 1.0f) : values[kind];
        *reply.length = 3;
        *reply.left = 4;
        engine.isa = isa;
        engine.threads = 1 + (kind + sampled) % 3;
        engine.run({make("accept",
                         AcceptArgs{logits, vocabulary, stride, reply.ids, reply.n, sampler, reply.cursor, noise, 0})},
                   1);
        if (*reply.count != 1 || reply.history[3] < 0 || reply.history[3] >= vocabulary)
          return failed(name, "%s: kind %d, sampler %d: token %d", isa->name, (int)kind, (int)sampled,
                        reply.history[3]);
        if (!arena.intact()) return failed(name, "%s: written beyond the end of a buffer", isa->name);
      }
    }
  }
  passed(name, 0);
}

}  // namespace

void round() {
  lookups();
  static const int32_t ends[2] = {17, 4000};
  const Choice choices[] = {
      {"greedy", 9001, {0, 1, 0, 1, 0, 7, 0, nullptr}, 40},
      {"greedy with penalty", 1003, {0, 1, 0, 1.3, 0, 7, 0, nullptr}, 40},
      {"at temperature 0.8", 9001, {0.8, 1, 0, 1, 0, 11, 0, nullptr}, 40},
      {"top-k", 5003, {1.3, 1, 0, 1, 20, -5, 0, nullptr}, 40},
      {"top-p", 9001, {0.9, 0.8, 0, 1, 0, 1ll << 40, 0, nullptr}, 40},
      {"min-p", 2011, {1.5, 1, 0.05, 1, 0, 3, 0, nullptr}, 40},
      {"all filters", 9001, {1.1, 0.95, 0.02, 1.1, 50, 99, 0, nullptr}, 40},
      {"of a small vocabulary", 40, {1, 0.9, 0, 1.2, 5, 1, 0, nullptr}, 40},
      {"until an end", 9001, {1.0, 1, 0, 1, 0, 5, 2, ends}, 40},
      {"of one token", 9001, {1.0, 1, 0, 1, 0, 5, 0, nullptr}, 1},
  };
  for (const Choice& c : choices) choose(c);
  strange_logits();
}

}  // namespace check

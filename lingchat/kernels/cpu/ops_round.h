// A round beside the model: prompt lookup, the rows of anchor and drafts, which drafts hold, the stop, the record for
// the host. Meanings are those of kernels/{lookup,rounds}.py. Only `accept` does any work: with all threads (draw.h) it
// chooses the token after one row and then after the next, until a draft is missed. Integers: all repeats.
#include "draw.h"

static void accept(const AcceptArgs& a, Team& team) {
  const CursorArgs& cursor = *a.cursor;
  const Sampler& sampler = *a.sampler;
  draw::Row row = {};
  row.team = &team;
  row.size = a.vocabulary;
  row.groups = draw::groups_of(a.vocabulary);
  // A vocabulary in which the threads find no room to talk is small enough for one.
  const bool alone = team.count == 1 || draw::room(row.size, team.count) > a.stride;
  if (alone && team.id != 0) return;  // before anything is read that the one changes
  const int64_t rows = a.single ? 1 : team.run->rows, drafted = *a.n, length = *cursor.length, left = *cursor.left;
  row.threads = alone ? 1 : team.count;
  row.id = alone ? 0 : team.id;
  row.begin = row.groups * row.id / row.threads;
  row.end = row.groups * (row.id + 1) / row.threads;
  float* own = reinterpret_cast<float*>(team.scratch);
  if (alone) own = draw::place(row, own);
  else draw::place(row, a.noise);
  row.seen = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(own) + 63) & ~(uintptr_t)63);
  const bool penalized = sampler.repetition_penalty != 1.0;
  if (penalized) draw::see_history(row, cursor.history, length);

  int64_t r = 0;
  for (;; r++) {
    if (penalized && r > 0) draw::see(row, a.ids[r]);
    row.z = a.logits + r * a.stride;
    const int32_t token = draw::choose(row, sampler, r, length);
    if (row.id == 0) cursor.emitted[r] = token;
    if (r >= drafted || r + 1 >= rows || token != a.ids[r + 1]) break;
  }
  if (row.id != 0) return;

  // Behind the last barrier: the others read nothing of the cursor any more.
  int64_t first_end = rows;
  for (int64_t i = 0; i <= r && first_end == rows; i++) {
    for (int64_t e = 0; e < sampler.end_count; e++) {
      if (cursor.emitted[i] == sampler.end_ids[e]) first_end = i;
    }
  }
  int64_t count = first_end < r ? first_end + 1 : r + 1;
  if (count > left) count = left;
  // Slots beyond `count` keep what they hold: a later lookup must not see stray tokens.
  for (int64_t i = 0; i < count; i++) cursor.history[length + i] = cursor.emitted[i];
  *cursor.count = (int32_t)count;
  *cursor.accepted = (int32_t)r;
  *cursor.drafted = (int32_t)drafted;
  *cursor.done = first_end < count ? 1 : count == left ? 2 : 0;
  *cursor.length = (int32_t)(length + count);
  *cursor.left = (int32_t)(left - count);
}

// One thread's work, all that follows.

static void lookup(const LookupArgs& a, Team& team) {
  if (team.id != 0) return;
  const int32_t* history = a.cursor->history;
  const int64_t last = (int64_t)*a.cursor->length - 1, left = *a.cursor->left;
  int64_t found = last, longest = 1;  // a match of one token is no evidence
  // From the latest end of a match to the earliest, in pieces, of which nearly all hold no match of two tokens.
  for (int64_t end = last; end > 1 && longest < a.longest; end -= 64) {
    const int64_t begin = end > 65 ? end - 64 : 1;
    const int32_t anchor = history[last], before = history[last - 1];
    int32_t any = 0;
    for (int64_t i = begin; i < end; i++) any |= (history[i] == anchor) & (history[i - 1] == before);
    if (!any) continue;
    for (int64_t i = end - 1; i >= begin && longest < a.longest; i--) {
      int64_t match = 0;
      while (match < a.longest && match <= i && history[i - match] == history[last - match]) match++;
      if (match > longest) {
        longest = match;
        found = i;
      }
    }
  }
  int64_t n = last - found;
  if (n > a.limit) n = a.limit;
  for (int64_t i = 0; i < n; i++) a.ids[i] = history[found + 1 + i];
  *a.n = (int32_t)(n < left - 1 ? n : left > 1 ? left - 1 : 0);
}

static void no_draft(const NoDraftArgs& a, Team& team) {
  if (team.id == 0) *a.n = 0;
}

static void draft_rows(const DraftRowsArgs& a, Team& team) {
  if (team.id != 0) return;
  a.ids[0] = a.cursor->history[*a.cursor->length - 1];
  for (int64_t i = 1; i < a.width; i++) a.ids[i] = a.draft_ids[i - 1];
  team.run->rows = 1 + *a.n;
  // The clock of Python's time.monotonic_ns
#if defined(CLOCK_UPTIME_RAW)
  const clockid_t clock = CLOCK_UPTIME_RAW;
#else
  const clockid_t clock = CLOCK_MONOTONIC;
#endif
  struct timespec now;
  clock_gettime(clock, &now);
  team.run->drafted_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void advance(const AdvanceArgs& a, Team& team) {
  if (team.id == 0) *a.length += *a.count;
}

// The host may look at `written` from another thread.
static void emit(const EmitArgs& a, Team& team) {
  if (team.id != 0) return;
  Ring& ring = *a.ring;
  const CursorArgs& cursor = *a.cursor;
  int32_t* record = ring.records + ring.written % ring.capacity * (4 + ring.width);
  record[0] = *cursor.count;
  record[1] = *cursor.drafted;
  record[2] = *cursor.accepted;
  record[3] = *cursor.done;
  for (int64_t i = 0; i < *cursor.count && i < ring.width; i++) record[4 + i] = cursor.emitted[i];
  __atomic_store_n(&ring.written, ring.written + 1, __ATOMIC_RELEASE);
}

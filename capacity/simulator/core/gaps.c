/* Gaps between successive deliveries of requests, in bounded memory: gap_counter.py. */
#include "gaps.h"

enum { FIRST_ROOM = 1 << 13 };
enum { DIGIT_BITS = 12, NUM_DIGITS = 1 << DIGIT_BITS };

gaps *gaps_new(memory *m)
{
    gaps *g = take_memory(m, sizeof *g);
    g->memory = m;
    RESERVE(m, &g->exact, FIRST_ROOM);
    g->spare = take_memory(m, FIRST_ROOM * sizeof *g->spare);
    g->unused_bins = take_memory(m, sizeof *g->bins * NUM_BINS);
    g->size_bits = FIRST_SIZE_BITS;
    return g;
}

/* From the last digit to the first: each pass keeps the order of those before. */
static void sort_gaps(gaps *g)
{
    i64 used = 0;
    int32_t starts[NUM_DIGITS];
    for (i64 i = 0; i < g->exact.count; i++)
        used |= g->exact.at[i].gap;
    for (int shift = 0; shift < 63 && used >> shift; shift += DIGIT_BITS) {
        counted_gap *from = g->exact.at, *to = g->spare;
        memset(starts, 0, sizeof starts);
        for (i64 i = 0; i < g->exact.count; i++)
            starts[from[i].gap >> shift & (NUM_DIGITS - 1)]++;
        int32_t before = 0;
        for (i64 digit = 0; digit < NUM_DIGITS; digit++) {
            int32_t count = starts[digit];
            starts[digit] = before;
            before += count;
        }
        for (i64 i = 0; i < g->exact.count; i++)
            to[starts[from[i].gap >> shift & (NUM_DIGITS - 1)]++] = from[i];
        g->exact.at = to;
        g->spare = from;
    }
}

/* With more than EXACT_GAPS different gaps, store them in bins from now on. */
static void use_bins(gaps *g)
{
    g->bins = g->unused_bins;
    for (i64 i = 0; i < g->distinct; i++)
        g->bins[gap_bin(g->exact.at[i].gap, gap_length(g->exact.at[i].gap), BIN_BITS)] += g->exact.at[i].count;
    free_memory(g->memory, g->exact.at);
    free_memory(g->memory, g->spare);
    g->exact.at = g->spare = NULL;
    g->exact.count = g->exact.room = 0;
}

/* Count equal gaps together. */
static void compress(gaps *g)
{
    sort_gaps(g);
    g->distinct = 0;
    for (i64 i = 0; i < g->exact.count; i++) {
        counted_gap one = g->exact.at[i];
        if (g->distinct && g->exact.at[g->distinct - 1].gap == one.gap)
            g->exact.at[g->distinct - 1].count += one.count;
        else
            g->exact.at[g->distinct++] = one;
    }
    g->exact.count = g->distinct;
    if (g->distinct > EXACT_GAPS)
        use_bins(g);
}

/* Whether there are certainly more than EXACT_GAPS different gaps: each sets a bit, and some share one. */
static int surely_too_many(const gaps *g)
{
    enum { BITS = 20 };
    uint64_t *set = take_memory(g->memory, ((size_t)1 << BITS) / 8);
    i64 different = 0;
    for (i64 i = 0; i < g->exact.count; i++) {
        uint64_t bit = ((uint64_t)g->exact.at[i].gap * 0x9E3779B97F4A7C15u) >> (64 - BITS);
        different += ~set[bit >> 6] >> (bit & 63) & 1;
        set[bit >> 6] |= (uint64_t)1 << (bit & 63);
    }
    free_memory(g->memory, set);
    return different > EXACT_GAPS;
}

/* Untouched memory costs nothing: neither new memory nor the buffer for sorting is cleared. */
static void widen(gaps *g, i64 room)
{
    counted_gap *larger = take_memory(g->memory, (size_t)room * sizeof *larger);
    memcpy(larger, g->exact.at, (size_t)g->exact.count * sizeof *larger);
    free_memory(g->memory, g->exact.at);
    free_memory(g->memory, g->spare);
    g->exact.at = larger;
    g->exact.room = room;
    g->spare = NULL;
    g->spare = take_memory(g->memory, (size_t)room * sizeof *g->spare);
}

void gaps_make_room(gaps *g)
{
    if (g->exact.room > EXACT_GAPS && surely_too_many(g)) {
        g->distinct = g->exact.count;
        use_bins(g);
        return;
    }
    compress(g);
    if (2 * g->exact.count > g->exact.room) /* hardly any were equal */
        widen(g, 2 * EXACT_GAPS);
}

/* Merge pairs of batches: every batch holds twice as many gaps, and half of the batches are free again. */
static void merge(gaps *g)
{
    const i64 half = MOST_BATCHES / 2 * OCTAVE_BINS;
    for (i64 i = 0; i < NUM_OCTAVES; i++) {
        i64 *octave = g->octaves[i];
        if (!octave)
            continue;
        for (i64 k = 0; k < half; k++) {
            i64 batch = k / OCTAVE_BINS, bin = k % OCTAVE_BINS;
            octave[k] = octave[2 * batch * OCTAVE_BINS + bin] + octave[(2 * batch + 1) * OCTAVE_BINS + bin];
        }
        memset(octave + half, 0, (size_t)half * sizeof *octave);
    }
    g->size_bits++;
}

i64 *gaps_new_octave(gaps *g, i64 octave)
{
    return g->octaves[octave] = take_memory(g->memory, sizeof(i64) * MOST_BATCHES * OCTAVE_BINS);
}

void gaps_merge_batches(gaps *g)
{
    while (g->count > (i64)MOST_BATCHES << g->size_bits)
        merge(g);
}

void gaps_export(gaps *g, gaps_arrays *out)
{
    if (g->distinct < g->exact.count)
        compress(g);
    *out = (gaps_arrays){
        .count = g->count,
        .total_low = (uint64_t)g->total,
        .total_high = (uint64_t)(g->total >> 64),
        .num_gaps = g->exact.count,
        .gaps = (const i64 *)g->exact.at,
        .bins = g->bins,
        .batch_size = (i64)1 << g->size_bits,
        .octaves = (const i64 *const *)g->octaves,
    };
}

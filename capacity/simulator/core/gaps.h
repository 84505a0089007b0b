/* Gaps between successive deliveries of requests, in bounded memory: gap_counter.py. */
#ifndef CAPACITY_GAPS_H
#define CAPACITY_GAPS_H

#include "internal.h"

enum { EXACT_GAPS = 1 << 16 };                        /* distinct gaps kept exactly; with more they are in bins */
enum { BIN_BITS = 11, NUM_BINS = 64 << BIN_BITS };    /* of gap_counter.py */
enum { MOST_BATCHES = 40, FIRST_SIZE_BITS = 4 };      /* of gap_counter.py: 16 gaps in a batch at first */
enum { BATCH_BIN_BITS = 8, OCTAVE_BINS = 1 << BATCH_BIN_BITS, NUM_OCTAVES = 64 };

/* Data of gaps.c. */
typedef struct {
    i64 gap, count;
} counted_gap;

struct gaps {
    memory *memory;
    i64 count;
    u128 total;
    VEC(counted_gap) exact; /* until there are too many: the first `distinct` sorted, the others as added */
    i64 distinct;
    counted_gap *spare;     /* a buffer of the same size for sorting */
    i64 *bins;              /* used from then on; NULL before */
    i64 *unused_bins;       /* exporting gaps allocates no memory */
    i64 *octaves[NUM_OCTAVES]; /* of gaps: by batch and bin; NULL: there were none */
    int size_bits;          /* a batch holds 1 << size_bits gaps */
};

void gaps_make_room(gaps *g);
void gaps_merge_batches(gaps *g);
i64 *gaps_new_octave(gaps *g, i64 octave);

/* A bin keeps the leading bits + 1 bits of a gap, so small gaps are exact. `length`: number of bits of the gap. */
static inline i64 gap_bin(i64 gap_ps, int length, int bits)
{
    int shift = MAX(length - (bits + 1), 0);
    return ((i64)shift << bits) + (gap_ps >> shift);
}

static inline int gap_length(i64 gap_ps)
{
    return 64 - __builtin_clzll((uint64_t)gap_ps | 1); /* 1 for 0 too: neither is shifted */
}

/* Prefetch the bin of a gap that will be counted soon. */
static inline void gaps_expect(const gaps *g, i64 gap_ps)
{
    if (g->bins)
        __builtin_prefetch(&g->bins[gap_bin(gap_ps, gap_length(gap_ps), BIN_BITS)], 1);
    else
        __builtin_prefetch(&g->exact.at[g->exact.count], 1);
    i64 bin = gap_bin(gap_ps, gap_length(gap_ps), BATCH_BIN_BITS);
    const i64 *octave = g->octaves[bin / OCTAVE_BINS];
    if (octave)
        __builtin_prefetch(&octave[(g->count >> g->size_bits) * OCTAVE_BINS + bin % OCTAVE_BINS], 1);
}

/* This many equal gaps of one step are one entry, smaller ones first. The batch of an entry is that of its first gap.
 */
static inline void gaps_add(gaps *g, i64 gap_ps, i64 count)
{
    REQUIRE(g->memory, gap_ps >= 0 && count > 0);
    int length = gap_length(gap_ps);
    g->count += count;
    g->total += (u128)(uint64_t)gap_ps * (uint64_t)count;
    if (g->bins) {
        g->bins[gap_bin(gap_ps, length, BIN_BITS)] += count;
    } else {
        g->exact.at[g->exact.count++] = (counted_gap){gap_ps, count};
        if (g->exact.count == g->exact.room)
            gaps_make_room(g);
    }
    if (g->count > (i64)MOST_BATCHES << g->size_bits)
        gaps_merge_batches(g);
    i64 bin = gap_bin(gap_ps, length, BATCH_BIN_BITS);
    i64 batch = (g->count - count) >> g->size_bits;
    i64 *octave = g->octaves[bin / OCTAVE_BINS];
    if (!octave)
        octave = gaps_new_octave(g, bin / OCTAVE_BINS);
    octave[batch * OCTAVE_BINS + bin % OCTAVE_BINS] += count;
}

#endif

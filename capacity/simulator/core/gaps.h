/* What gaps.c holds, as Python takes it into `GapCounter` and `GapBatches`. */
#ifndef CAPACITY_GAPS_H
#define CAPACITY_GAPS_H

#include "core.h"

enum { EXACT_GAPS = 1 << 16 };                        /* distinct gaps kept exactly; with more they are in bins */
enum { BIN_BITS = 11, NUM_BINS = 64 << BIN_BITS };    /* of gap_counter.py */
enum { MOST_BATCHES = 40, FIRST_SIZE_BITS = 4 };      /* of gap_batches.py: 16 gaps in a batch at first */
enum { BATCH_BIN_BITS = 8, NUM_BATCH_BINS = 64 << BATCH_BIN_BITS };

/* Pointers are valid until the next gap is added. */
typedef struct {
    i64 count;
    uint64_t total_low, total_high; /* of the sum of all gaps: 128 bits */
    i64 num_slots;
    const i64 *slots;               /* pairs of a gap and how often, in no order; nothing where that is 0 */
    const i64 *bins;                /* NUM_BINS; NULL: the gaps are exact */
    i64 batch_size;
    const i64 *batches;             /* MOST_BATCHES rows of NUM_BATCH_BINS */
    i64 first_bin, last_bin;        /* of those that any batch has used; the first is above the last where none has */
} gaps_arrays;

struct gaps;
void gaps_export(struct gaps *g, gaps_arrays *out);

#endif

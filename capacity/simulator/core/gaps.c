/* Gaps between successive deliveries of requests, in bounded memory: gap_counter.py and gap_batches.py. */
#include "gaps.h"
#include "internal.h"

enum { LATE_GAPS = 16 }; /* a power of two */

typedef struct {
    i64 gap, count; /* count 0: free */
} slot;

struct gaps {
    memory *memory;
    i64 count;
    u128 total;
    slot *slots; /* a hash table with open addressing; NULL: the gaps are in bins */
    int slot_bits;
    i64 num_gaps;
    i64 *bins;
    i64 *batches; /* by batch and bin */
    slot late[LATE_GAPS]; /* counted exactly a little later, when their slots have come into the cache */
    i64 first_late, num_late;
    int size_bits; /* a batch holds 1 << size_bits gaps */
    i64 first_bin, last_bin; /* of those that any batch has used */
};

gaps *gaps_new(memory *m)
{
    gaps *g = take_memory(m, sizeof *g);
    g->memory = m;
    g->slot_bits = 8;
    g->slots = take_memory(m, sizeof *g->slots << g->slot_bits);
    g->batches = take_memory(m, sizeof *g->batches * MOST_BATCHES * NUM_BATCH_BINS);
    g->size_bits = FIRST_SIZE_BITS;
    g->first_bin = NUM_BATCH_BINS;
    g->last_bin = MISSING;
    return g;
}

/* A bin keeps a gap's leading bits + 1 bits, so small ones are exact. */
static inline i64 bin_of(i64 gap_ps, int bits)
{
    int length = 64 - __builtin_clzll((uint64_t)gap_ps | 1); /* 1 for 0 too: neither is shifted */
    int shift = MAX(length - (bits + 1), 0);
    return ((i64)shift << bits) + (gap_ps >> shift);
}

static inline uint64_t place_of(int slot_bits, i64 gap_ps)
{
    return ((uint64_t)gap_ps * 0x9E3779B97F4A7C15u) >> (64 - slot_bits);
}

/* The slot of a gap, or the free one where it belongs. */
static inline slot *slot_of(slot *slots, int slot_bits, i64 gap_ps)
{
    uint64_t mask = ((uint64_t)1 << slot_bits) - 1;
    uint64_t place = place_of(slot_bits, gap_ps);
    while (slots[place].count && slots[place].gap != gap_ps)
        place = (place + 1) & mask;
    return &slots[place];
}

static void double_slots(gaps *g)
{
    slot *wider = take_memory(g->memory, sizeof *wider << (g->slot_bits + 1));
    for (i64 i = 0; i < (i64)1 << g->slot_bits; i++)
        if (g->slots[i].count)
            *slot_of(wider, g->slot_bits + 1, g->slots[i].gap) = g->slots[i];
    free_memory(g->memory, g->slots);
    g->slots = wider;
    g->slot_bits++;
}

/* More than EXACT_GAPS different gaps go into bins for good. */
static void use_bins(gaps *g)
{
    g->bins = take_memory(g->memory, sizeof *g->bins * NUM_BINS);
    for (i64 i = 0; i < (i64)1 << g->slot_bits; i++)
        g->bins[bin_of(g->slots[i].gap, BIN_BITS)] += g->slots[i].count;
    free_memory(g->memory, g->slots);
    g->slots = NULL;
}

static void count_exactly(gaps *g, i64 gap_ps, i64 count)
{
    slot *s = slot_of(g->slots, g->slot_bits, gap_ps);
    if (s->count) {
        s->count += count;
        return;
    }
    if (g->num_gaps == EXACT_GAPS) {
        use_bins(g);
        g->bins[bin_of(gap_ps, BIN_BITS)] += count;
        return;
    }
    *s = (slot){gap_ps, count};
    g->num_gaps++;
}

static void count_late(gaps *g)
{
    slot late = g->late[g->first_late];
    g->first_late = (g->first_late + 1) & (LATE_GAPS - 1);
    g->num_late--;
    if (g->bins)
        g->bins[bin_of(late.gap, BIN_BITS)] += late.count;
    else
        count_exactly(g, late.gap, late.count);
}

/* There is room for all that are late, so that counting them takes no memory; but near EXACT_GAPS none is late. */
static void count_soon(gaps *g, i64 gap_ps, i64 count)
{
    if ((g->num_gaps + LATE_GAPS) * 2 > (i64)1 << g->slot_bits)
        double_slots(g);
    if (g->num_late == LATE_GAPS)
        count_late(g);
    __builtin_prefetch(&g->slots[place_of(g->slot_bits, gap_ps)], 1);
    g->late[(g->first_late + g->num_late++) & (LATE_GAPS - 1)] = (slot){gap_ps, count};
    while (g->num_late && g->num_gaps + LATE_GAPS >= EXACT_GAPS)
        count_late(g);
}

/* Two batches become one: every batch holds twice as many gaps, and half of the batches are free again. */
static void merge_batches(gaps *g)
{
    for (i64 batch = 0; batch < MOST_BATCHES; batch++) {
        i64 *row = g->batches + batch * NUM_BATCH_BINS;
        const i64 *early = g->batches + 2 * batch * NUM_BATCH_BINS, *late = early + NUM_BATCH_BINS;
        for (i64 bin = g->first_bin; bin <= g->last_bin; bin++)
            row[bin] = batch < MOST_BATCHES / 2 ? early[bin] + late[bin] : 0;
    }
    g->size_bits++;
}

/* The batch of an entry is that of its first gap. */
static inline void count_in_batch(gaps *g, i64 gap_ps, i64 count)
{
    while (g->count > (i64)MOST_BATCHES << g->size_bits)
        merge_batches(g);
    i64 batch = (g->count - count) >> g->size_bits;
    i64 bin = bin_of(gap_ps, BATCH_BIN_BITS);
    if (bin < g->first_bin)
        g->first_bin = bin;
    if (bin > g->last_bin)
        g->last_bin = bin;
    g->batches[batch * NUM_BATCH_BINS + bin] += count;
}

void gaps_add(gaps *g, i64 gap_ps, i64 count)
{
    REQUIRE(g->memory, gap_ps >= 0 && count > 0);
    g->count += count;
    g->total += (u128)gap_ps * (u128)count;
    if (g->bins)
        g->bins[bin_of(gap_ps, BIN_BITS)] += count;
    else
        count_soon(g, gap_ps, count);
    count_in_batch(g, gap_ps, count);
}

void gaps_export(gaps *g, gaps_arrays *out)
{
    while (g->num_late)
        count_late(g);
    *out = (gaps_arrays){
        .count = g->count,
        .total_low = (uint64_t)g->total,
        .total_high = (uint64_t)(g->total >> 64),
        .num_slots = g->bins ? 0 : (i64)1 << g->slot_bits,
        .slots = (const i64 *)g->slots,
        .bins = g->bins,
        .batch_size = (i64)1 << g->size_bits,
        .batches = g->batches,
        .first_bin = g->first_bin,
        .last_bin = g->last_bin,
    };
}

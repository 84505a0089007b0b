/* KV offload: tiers with chunks of blocks that the GPU may evict. */
#ifndef CAPACITY_TIERS_H
#define CAPACITY_TIERS_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef VEC(i64) names;  /* of chunks */
typedef VEC(i64) places; /* of chunks in their request's chain */

/* A set of names, each with a number. */
typedef struct {
    struct named *at;
    i64 count, room; /* a power of two */
} name_map;
i64 *name_map_find(const name_map *map, i64 name); /* number of the name; NULL: not there */
void name_map_put(memory *m, name_map *map, i64 name, i64 number);
void name_map_drop(name_map *map, i64 name);

typedef struct tier_store tier_store;

/* Chunks of a request in the tiers below the GPU, in order, each with the nearest tier that has it. */
typedef struct {
    places places;
    VEC(i64) tiers;
} tier_hit;

/* The tiers of one engine. */
typedef struct {
    memory *memory;
    i64 num_stores, chunk_blocks, chunk_tokens;
    int synchronous;
    tier_store *stores[2];
    const core_contents *contents; /* NULL: nothing is shared */
    const i64 *first_number;       /* contents.h */
    tier_hit hit;                  /* the last one found */
    places wanted, taken;
} tier_stack;

void tier_stack_init(tier_stack *t, memory *m, const core_engine *setup, const core_requests *requests);
i64 chunk_name(const tier_stack *t, i64 request, i64 place);
const tier_hit *find_below(tier_stack *t, table *known, i64 first, i64 chunks, i64 now_ps);
i64 load_from_below(tier_stack *t, table *known, const tier_hit *h, i64 now_ps);
int reserve_below(tier_stack *t, table *known, i64 first, i64 stop, places *taken, i64 now_ps);
void touch_nearest(tier_stack *t, table *known, i64 chunks);
void store_below(tier_stack *t, table *known, const places *stored, i64 now_ps);
void count_hit_tokens(tier_stack *t, i64 tier, i64 tokens);
i64 tier_stack_use(const tier_stack *t, core_tier_use *uses);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

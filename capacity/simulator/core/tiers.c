/* KV below the GPU: tiers of host memory, disk or network that keep blocks which the GPU may drop: kv_cache/offload.py.
 *
 * A chunk's name is the number of its last block's content where that is shared, and else of the request and the
 * chunk. Chunks of a tier form a list, the least recently used first. */
#include <math.h>

#include "contents.h"
#include "tiers.h"

#define NONE (-1)
#define PS_PER_S 1e12

/* names */

struct named {
    i64 name, number; /* number + 1; 0: free */
};

static i64 place_of(const name_map *map, i64 name)
{
    uint64_t mixed_name = (uint64_t)name * 0x9E3779B97F4A7C15u;
    i64 place = (i64)(mixed_name ^ mixed_name >> 32) & (map->room - 1);
    while (map->at[place].number && map->at[place].name != name)
        place = (place + 1) & (map->room - 1);
    return place;
}

i64 *name_map_find(const name_map *map, i64 name)
{
    if (!map->room)
        return NULL;
    struct named *found = &map->at[place_of(map, name)];
    return found->number ? &found->number : NULL;
}

void name_map_put(memory *m, name_map *map, i64 name, i64 number)
{
    if (2 * map->count >= map->room) {
        name_map wider = {.room = map->room ? 2 * map->room : 64};
        wider.at = take_memory(m, (size_t)wider.room * sizeof *wider.at);
        for (i64 i = 0; i < map->room; i++)
            if (map->at[i].number)
                wider.at[place_of(&wider, map->at[i].name)] = map->at[i];
        wider.count = map->count;
        free_memory(m, map->at);
        *map = wider;
    }
    struct named *place = &map->at[place_of(map, name)];
    map->count += !place->number;
    *place = (struct named){name, number + 1};
}

/* What stands behind it in its row of places moves up, where it may. */
void name_map_drop(name_map *map, i64 name)
{
    if (!map->room)
        return;
    i64 hole = place_of(map, name), mask = map->room - 1;
    if (!map->at[hole].number)
        return;
    map->count--;
    map->at[hole].number = 0;
    for (i64 place = (hole + 1) & mask; map->at[place].number; place = (place + 1) & mask) {
        struct named moved = map->at[place];
        map->at[place].number = 0;
        map->at[place_of(map, moved.name)] = moved;
    }
}

/* one tier */

typedef struct {
    i64 name;
    i64 ready_ps, busy_ps; /* until when it is being written, and until when it is in some transfer */
    i64 older, newer;      /* of one that is not in use, `newer` is the next such */
} chunk;

struct tier_store {
    memory *memory;
    core_tier tier;
    double chunk_bytes;
    name_map places;
    VEC(chunk) chunks; /* the first stands for both ends of the list */
    i64 unused;        /* the first chunk that is not in use; 0: none */
    i64 write_free_ps, read_free_ps;
    core_tier_use use;
};

static tier_store *tier_store_new(memory *m, core_tier tier, double chunk_bytes)
{
    tier_store *store = take_memory(m, sizeof *store);
    store->memory = m;
    store->tier = tier;
    store->chunk_bytes = chunk_bytes;
    PUSH(m, &store->chunks, (chunk){0});
    return store;
}

static i64 count_chunks(const tier_store *store) { return store->places.count; }

static chunk *find_chunk(const tier_store *store, i64 name)
{
    i64 *place = name_map_find(&store->places, name);
    return place ? &store->chunks.at[*place - 1] : NULL;
}

static void take_out(tier_store *store, chunk *c)
{
    store->chunks.at[c->older].newer = c->newer;
    store->chunks.at[c->newer].older = c->older;
}

/* As the most recently used. */
static void put_last(tier_store *store, i64 number)
{
    chunk *c = &store->chunks.at[number], *ends = store->chunks.at;
    c->older = ends->older;
    c->newer = 0;
    store->chunks.at[ends->older].newer = number;
    ends->older = number;
}

/* Whether the chunk can be read now. */
static int has(const tier_store *store, i64 name, i64 now_ps)
{
    const chunk *c = find_chunk(store, name);
    return c && c->ready_ps <= now_ps;
}

/* These were used now, the first of them last. */
static void touch(tier_store *store, const names *chunks)
{
    for (i64 i = chunks->count - 1; i >= 0; i--) {
        chunk *c = find_chunk(store, chunks->at[i]);
        if (!c)
            continue;
        take_out(store, c);
        put_last(store, c - store->chunks.at);
    }
}

static void add_chunk(tier_store *store, i64 name, i64 ready_ps)
{
    i64 number = store->unused;
    if (number) {
        store->unused = store->chunks.at[number].newer;
    } else {
        number = store->chunks.count;
        PUSH(store->memory, &store->chunks, (chunk){0});
    }
    store->chunks.at[number] = (chunk){.name = name, .ready_ps = ready_ps, .busy_ps = ready_ps};
    put_last(store, number);
    name_map_put(store->memory, &store->places, name, number);
}

static void drop_chunk(tier_store *store, i64 number)
{
    chunk *c = &store->chunks.at[number];
    take_out(store, c);
    name_map_drop(&store->places, c->name);
    c->newer = store->unused;
    store->unused = number;
}

/* Drop so many of the least recently used chunks, those in transfer excepted; 0: there are not as many. */
static int make_room(tier_store *store, i64 excess, i64 now_ps)
{
    i64 found = 0, last = store->chunks.at[0].newer;
    for (; last && found < excess; last = store->chunks.at[last].newer)
        found += store->chunks.at[last].busy_ps <= now_ps;
    if (found < excess) {
        store->use.refused++;
        return 0;
    }
    for (i64 number = store->chunks.at[0].newer; number != last;) {
        i64 next = store->chunks.at[number].newer;
        if (store->chunks.at[number].busy_ps <= now_ps)
            drop_chunk(store, number);
        number = next;
    }
    store->use.evicted += excess;
    return 1;
}

/* Places for those of the chunks that are not here: these are `taken`. 0: nothing can be dropped for them. */
static int reserve(tier_store *store, const i64 *chunks, i64 count, names *taken, i64 now_ps)
{
    i64 capacity = store->tier.capacity_chunks, before = taken->count;
    for (i64 i = 0; i < count; i++)
        if (!find_chunk(store, chunks[i]))
            PUSH(store->memory, taken, chunks[i]);
    i64 excess = count_chunks(store) + taken->count - before - capacity;
    if (capacity >= 0 && excess > 0 && !make_room(store, excess, now_ps)) {
        taken->count = before;
        return 0;
    }
    for (i64 i = before; i < taken->count; i++)
        add_chunk(store, taken->at[i], NEVER);
    return 1;
}

static i64 picoseconds(tier_store *store, double seconds)
{
    double ps = rint(seconds * PS_PER_S);
    if (!(ps < (double)(NEVER / 4)))
        fail(store->memory, BAD_INPUT, "a transfer of KV takes %g s", seconds);
    return (i64)ps;
}

static i64 payload_ps(tier_store *store, i64 chunks)
{
    return picoseconds(store, (double)chunks * store->chunk_bytes / store->tier.bytes_per_s);
}

/* Copy reserved chunks here from now on; returns when they have arrived. */
static i64 write_chunks(tier_store *store, const i64 *chunks, i64 count, i64 now_ps)
{
    store->write_free_ps = MAX(store->write_free_ps, now_ps) + payload_ps(store, count);
    i64 end_ps = store->write_free_ps + store->tier.latency_ps;
    for (i64 i = 0; i < count; i++) {
        chunk *c = find_chunk(store, chunks[i]);
        REQUIRE(store->memory, c);
        c->ready_ps = c->busy_ps = end_ps;
    }
    store->use.stored += count;
    return end_ps;
}

/* Copy chunks to the tier above from now on; returns when they are there. None is dropped before. */
static i64 read_chunks(tier_store *store, const names *chunks, i64 now_ps)
{
    store->read_free_ps = MAX(store->read_free_ps, now_ps) + payload_ps(store, chunks->count);
    i64 end_ps = store->read_free_ps + store->tier.latency_ps;
    for (i64 i = 0; i < chunks->count; i++) {
        chunk *c = find_chunk(store, chunks->at[i]);
        if (c) /* else it only passes through: there was no room to keep it */
            c->busy_ps = MAX(c->busy_ps, end_ps);
    }
    store->use.loaded += chunks->count;
    return end_ps;
}

/* the tiers of an engine */

void tier_stack_init(tier_stack *t, memory *m, const core_engine *setup, const core_requests *requests)
{
    t->memory = m;
    t->chunk_blocks = setup->chunk_blocks;
    t->chunk_tokens = setup->block_size * setup->chunk_blocks;
    t->synchronous = setup->offload_synchronous != 0;
    t->num_stores = setup->num_tiers;
    for (i64 i = 0; i < t->num_stores; i++)
        t->stores[i] = tier_store_new(m, setup->tiers[i], setup->chunk_bytes);
    if (setup->contents && setup->contents->offsets) {
        t->contents = setup->contents;
        t->first_number = number_contents(m, t->contents, requests->count);
    }
}

/* Names of the first chunks of a request. */
void name_chunks(const tier_stack *t, i64 request, i64 chunks, names *found)
{
    i64 own = own_from(t->contents, request);
    REQUIRE(t->memory, chunks < (i64)1 << 32);
    found->count = 0;
    RESERVE(t->memory, found, chunks);
    for (i64 number = 0; number < chunks; number++) {
        i64 block = (number + 1) * t->chunk_blocks - 1;
        found->at[number] = block < own ? content_number(t->contents, t->first_number, request, block)
                                        : ~(request << 32 | number);
    }
    found->count = chunks;
}

/* The unbroken run of chunks from number `first` on that are below the GPU. Touches all of them. */
const tier_hit *find_below(tier_stack *t, const names *chunks, i64 first, i64 now_ps)
{
    tier_hit *h = &t->hit;
    h->chunks.count = h->tiers.count = 0;
    for (i64 i = 0; i < t->num_stores; i++)
        touch(t->stores[i], chunks);
    for (i64 number = first; number < chunks->count; number++) {
        i64 tier = 0;
        while (tier < t->num_stores && !has(t->stores[tier], chunks->at[number], now_ps))
            tier++;
        if (tier == t->num_stores)
            break;
        PUSH(t->memory, &h->chunks, chunks->at[number]);
        PUSH(t->memory, &h->tiers, tier);
    }
    return h;
}

/* Chunks on their way up from the tier below, here at `ready_ps`: they stay, if there is room. */
static void arrive(tier_stack *t, i64 ready_ps, i64 now_ps)
{
    tier_store *store = t->stores[0];
    t->below.count = 0;
    reserve(store, t->far.at, t->far.count, &t->below, now_ps);
    for (i64 i = 0; i < t->below.count; i++) {
        chunk *c = find_chunk(store, t->below.at[i]);
        c->ready_ps = c->busy_ps = ready_ps;
        store->use.stored++;
    }
}

/* Bring the chunks to the GPU, those of the further tier by way of the nearer; returns when all are there. */
i64 load_from_below(tier_stack *t, const tier_hit *h, i64 now_ps)
{
    i64 ready_ps = now_ps;
    t->far.count = 0;
    for (i64 i = 0; i < h->chunks.count; i++)
        if (h->tiers.at[i])
            PUSH(t->memory, &t->far, h->chunks.at[i]);
    if (t->far.count) {
        ready_ps = read_chunks(t->stores[1], &t->far, now_ps);
        arrive(t, ready_ps, now_ps);
    }
    return read_chunks(t->stores[0], &h->chunks, ready_ps);
}

/* Places in the nearest tier for the chunks from number `first` on; see `reserve`. */
int reserve_below(tier_stack *t, const names *chunks, i64 first, names *taken, i64 now_ps)
{
    return reserve(t->stores[0], chunks->at + first, chunks->count - first, taken, now_ps);
}

void touch_nearest(tier_stack *t, const names *chunks) { touch(t->stores[0], chunks); }

/* Copy reserved chunks out of the GPU, then from tier to tier downwards. */
void store_below(tier_stack *t, const i64 *chunks, i64 count, i64 now_ps)
{
    i64 end_ps = write_chunks(t->stores[0], chunks, count, now_ps);
    if (t->num_stores == 1)
        return;
    t->below.count = 0;
    if (reserve(t->stores[1], chunks, count, &t->below, now_ps) && t->below.count)
        write_chunks(t->stores[1], t->below.at, t->below.count, end_ps);
}

void count_hit_tokens(tier_stack *t, i64 tier, i64 tokens) { t->stores[tier]->use.hit_tokens += tokens; }

i64 tier_stack_use(const tier_stack *t, core_tier_use *uses)
{
    for (i64 i = 0; i < t->num_stores; i++) {
        uses[i] = t->stores[i]->use;
        uses[i].held = count_chunks(t->stores[i]);
    }
    return t->num_stores;
}

/* KV offload: tiers of host memory, disk or network storage that keep blocks which the GPU may evict:
 * kv_cache/offload.py.
 *
 * The key of a chunk is the number of its last block's content if that is shared, otherwise the request and the chunk.
 * Chunks of a tier form a list in LRU order. Shared chunks have fixed entries. Private chunks of a request are stored
 * in slabs. The positions of its slabs are in the `blocks` of its table, which its pool does not use, and each slab
 * records its owner. Chunks of a chain are therefore adjacent in memory.
 *
 * A request's chain consists of spans: the runs that it shares, and its private part. The first chunks of a span stay
 * adjacent in the list, the deepest first, until one of them is dropped or used without the others, so that they can
 * be moved together.
 */
#include <math.h>

#include "contents.h"
#include "tiers.h"

#define NO_NAME INT64_MIN
#define AHEAD 4 /* chunks */
#define SLAB_BITS 3 /* chunks per slab: 1 << SLAB_BITS */
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

/* Move up the following entries of the hash table where possible. */
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

/* Chunks `first` to `stop` of a request's chain in one span: the key of a shared span, or the private part. */
typedef struct {
    i64 key, first, stop, name; /* key MISSING: private; name: of chunk 0, if that had one */
} stretch;

static i64 num_stretches(const tier_stack *t, i64 request)
{
    return t->contents ? t->contents->offsets[request + 1] - t->contents->offsets[request] + 1 : 1;
}

/* The first chunk whose last block is this one or a later one. */
static inline i64 chunk_from(const tier_stack *t, i64 block)
{
    return t->chunk_blocks == 1 ? block : ceil_div(block + 1, t->chunk_blocks) - 1;
}

static stretch stretch_of(const tier_stack *t, i64 request, i64 number)
{
    if (number == num_stretches(t, request) - 1) {
        i64 own = own_from(t->contents, request);
        return (stretch){.key = MISSING, .first = chunk_from(t, own), .stop = (i64)1 << 31};
    }
    const core_contents *c = t->contents;
    i64 run = c->offsets[request] + number, start = number ? c->stops[run - 1] : 0;
    return (stretch){.key = c->keys[run],
                     .first = chunk_from(t, start),
                     .stop = chunk_from(t, c->stops[run]),
                     .name = t->first_number[c->keys[run]] + t->chunk_blocks - 1 - start};
}

static inline i64 name_in(const tier_stack *t, const stretch *s, i64 request, i64 place)
{
    return s->key == MISSING ? ~(request << 32 | place) : s->name + place * t->chunk_blocks;
}

static stretch stretch_at(const tier_stack *t, i64 request, i64 place)
{
    REQUIRE(t->memory, place < (i64)1 << 31);
    i64 number = num_stretches(t, request) - 1;
    stretch s = stretch_of(t, request, number);
    while (place < s.first)
        s = stretch_of(t, request, --number);
    return s;
}

/* The stretch that contains a chunk, usually the last one. */
static inline void follow(const tier_stack *t, i64 request, i64 place, stretch *last)
{
    if (place < last->first || place >= last->stop)
        *last = stretch_at(t, request, place);
}

i64 chunk_name(const tier_stack *t, i64 request, i64 place)
{
    stretch s = stretch_at(t, request, place);
    return name_in(t, &s, request, place);
}

/* one tier */

typedef struct {
    i64 ready_ps, busy_ps; /* ends of the write and of the last transfer */
    uint32_t older, newer;
    uint32_t key, place;   /* key + 1 of a shared chunk, or 0; position in its span + 1, or 0: not here */
} chunk;

/* Entries of successive chunks of a request. */
typedef struct {
    i64 name, held; /* name of the first chunk; unused: NO_NAME, and the next unused one + 1 */
} slab;

struct tier_store {
    memory *memory;
    core_tier tier;
    double chunk_bytes;
    int returns; /* requests may come back, to one part of a disaggregated engine, with an empty table */
    name_map own;      /* in that case, slabs by name */
    i64 held;
    VEC(chunk) chunks; /* entry 0 is both ends of the list; then shared chunks, then slabs */
    const i64 *shared; /* by key: start of its chunks */
    i64 first_own;     /* start of the slabs */
    VEC(slab) slabs;
    i64 unused;        /* first unused slab + 1; 0: none */
    uint32_t *shared_together, *own_together; /* by key and request: number of adjacent chunks of a span */
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
    store->first_own = 1;
    return store;
}

static void take_out(tier_store *store, chunk *c)
{
    store->chunks.at[c->older].newer = c->newer;
    store->chunks.at[c->newer].older = c->older;
}

/* Make a chunk the most recently used. */
static void put_last(tier_store *store, i64 number)
{
    chunk *c = &store->chunks.at[number], *ends = store->chunks.at;
    c->older = ends->older;
    c->newer = 0;
    store->chunks.at[ends->older].newer = (uint32_t)number;
    ends->older = (uint32_t)number;
}

/* The entry of a table for the slab of a chunk. */
static i64 *memory_of(table *known, i64 tier, i64 place) { return &known->blocks.at[2 * (place >> SLAB_BITS) + tier]; }

static void remember_slabs(const tier_stack *t, table *known, i64 chunks)
{
    RESERVE(t->memory, &known->blocks, 2 * ((chunks >> SLAB_BITS) + 1));
}

static i64 slab_name(const table *known, i64 place) { return ~(known->request << 32 | place >> SLAB_BITS); }

/* The number of a chunk's slab + 1; 0: none of its chunks is here. The entry of a table may be outdated, for another
 * request or another rank's store. */
static i64 find_slab(const tier_store *store, i64 tier, table *known, i64 place)
{
    i64 *remembered = memory_of(known, tier, place), name = slab_name(known, place);
    if (*remembered && *remembered <= store->slabs.count && store->slabs.at[*remembered - 1].name == name)
        return *remembered;
    const i64 *own = store->returns ? name_map_find(&store->own, name) : NULL;
    return *remembered = own ? *own - 1 : 0;
}

static i64 in_slab(const tier_store *store, i64 number, i64 place)
{
    return store->first_own + ((number - 1) << SLAB_BITS) + (place & ((1 << SLAB_BITS) - 1));
}

/* The chunk at a position of a stretch; 0: not here. */
static i64 find_chunk(const tier_stack *t, i64 tier, table *known, const stretch *s, i64 place)
{
    const tier_store *store = t->stores[tier];
    i64 number;
    if (s->key != MISSING) {
        number = store->shared[s->key] + place - s->first;
    } else {
        i64 slab_number = find_slab(store, tier, known, place);
        if (!slab_number)
            return 0;
        number = in_slab(store, slab_number, place);
    }
    return store->chunks.at[number].place ? number : 0;
}

/* The chunk at a position of a request's chain; NULL: not here. `last` is the previous result. */
static chunk *chunk_at(const tier_stack *t, i64 tier, table *known, i64 place, stretch *last)
{
    follow(t, known->request, place, last);
    i64 number = find_chunk(t, tier, known, last, place);
    return number ? &t->stores[tier]->chunks.at[number] : NULL;
}

static uint32_t *together_of(const tier_store *store, const stretch *s, i64 request)
{
    return s->key == MISSING ? &store->own_together[request] : &store->shared_together[s->key];
}

/* Make a stretch of the list the most recently used. */
static void move_last(tier_store *store, i64 oldest, i64 newest)
{
    chunk *at = store->chunks.at;
    i64 older = at[oldest].older, newer = at[newest].newer;
    if (!newer)
        return;
    at[older].newer = (uint32_t)newer;
    at[newer].older = (uint32_t)older;
    at[oldest].older = at[0].older;
    at[newest].newer = 0;
    at[at[0].older].newer = (uint32_t)oldest;
    at[0].older = (uint32_t)newest;
}

/* Mark the chunks of a stretch before position `stop` as used now, with the first one as the most recent. */
static void touch_stretch(tier_stack *t, i64 tier, table *known, const stretch *s, i64 stop)
{
    tier_store *store = t->stores[tier];
    uint32_t *together = together_of(store, s, known->request);
    i64 first = s->first, alone = first + *together, next = stop;
    for (i64 place = stop - 1; place >= alone; place--) {
        i64 number = find_chunk(t, tier, known, s, place);
        if (number)
            move_last(store, number, number);
        else
            next = place; /* in the end, the first that is not here */
    }
    if (alone > first)
        move_last(store, find_chunk(t, tier, known, s, MIN(alone, stop) - 1), find_chunk(t, tier, known, s, first));
    *together = (uint32_t)(next - first);
}

/* Mark the first chunks of a request as used now, with the first one as the most recent. */
static void touch(tier_stack *t, i64 tier, table *known, i64 chunks)
{
    remember_slabs(t, known, chunks);
    for (i64 i = num_stretches(t, known->request) - 1; i >= 0; i--) {
        stretch s = stretch_of(t, known->request, i);
        if (s.first < MIN(s.stop, chunks))
            touch_stretch(t, tier, known, &s, MIN(s.stop, chunks));
    }
}

/* The slab of a private chunk, a new one if none of its chunks is here. */
static i64 slab_of(tier_store *store, i64 tier, table *known, i64 place)
{
    i64 number = find_slab(store, tier, known, place), name = slab_name(known, place);
    if (number)
        return number;
    number = store->unused;
    if (number) {
        store->unused = store->slabs.at[number - 1].held;
    } else {
        PUSH(store->memory, &store->slabs, (slab){0});
        number = store->slabs.count;
        REQUIRE(store->memory, in_slab(store, number, -1) < UINT32_MAX);
        for (i64 i = 0; i < 1 << SLAB_BITS; i++)
            PUSH(store->memory, &store->chunks, (chunk){0});
    }
    store->slabs.at[number - 1] = (slab){.name = name};
    if (store->returns)
        name_map_put(store->memory, &store->own, name, number);
    return *memory_of(known, tier, place) = number;
}

static void add_chunk(tier_stack *t, i64 tier, table *known, const stretch *s, i64 place)
{
    tier_store *store = t->stores[tier];
    i64 number;
    if (s->key != MISSING) {
        number = store->shared[s->key] + place - s->first;
    } else {
        i64 slab_number = slab_of(store, tier, known, place);
        store->slabs.at[slab_number - 1].held++;
        number = in_slab(store, slab_number, place);
    }
    store->chunks.at[number] = (chunk){.ready_ps = NEVER, .busy_ps = NEVER, .key = (uint32_t)(s->key + 1),
                                       .place = (uint32_t)(place - s->first + 1)};
    put_last(store, number);
    store->held++;
}

/* Remove a private chunk; return the request. */
static i64 leave_slab(tier_store *store, i64 number)
{
    i64 slab_number = ((number - store->first_own) >> SLAB_BITS) + 1;
    slab *of = &store->slabs.at[slab_number - 1];
    i64 request = ~of->name >> 32;
    if (--of->held)
        return request;
    if (store->returns)
        name_map_drop(&store->own, of->name);
    *of = (slab){.name = NO_NAME, .held = store->unused};
    store->unused = slab_number;
    return request;
}

static void drop_chunk(tier_store *store, i64 number)
{
    chunk *c = &store->chunks.at[number];
    take_out(store, c);
    uint32_t *together = c->key ? &store->shared_together[c->key - 1] : &store->own_together[leave_slab(store, number)];
    *together = MIN(*together, c->place - 1);
    c->place = 0;
    store->held--;
}

/* Evict least recently used chunks, except those in transfer; 0: there are too few. */
static int make_room(tier_store *store, i64 excess, i64 now_ps)
{
    i64 found = 0, last = store->chunks.at[0].newer;
    for (; last && found < excess; last = store->chunks.at[last].newer) {
        __builtin_prefetch(&store->chunks.at[MAX(last - AHEAD, 0)]); /* the deeper chunk of a chain comes first */
        found += store->chunks.at[last].busy_ps <= now_ps;
    }
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
    __builtin_prefetch(&store->chunks.at[store->chunks.at[0].newer]); /* next to evict */
    return 1;
}

/* Reserve space for the missing chunks, which become `taken`. 0: too few chunks can be evicted. */
static int reserve(tier_stack *t, i64 tier, table *known, const places *wanted, places *taken, i64 now_ps)
{
    tier_store *store = t->stores[tier];
    i64 capacity = store->tier.capacity_chunks, before = taken->count;
    stretch s = {0};
    for (i64 i = 0; i < wanted->count; i++)
        if (!chunk_at(t, tier, known, wanted->at[i], &s))
            PUSH(t->memory, taken, wanted->at[i]);
    i64 excess = store->held + taken->count - before - capacity;
    if (capacity >= 0 && excess > 0 && !make_room(store, excess, now_ps)) {
        taken->count = before;
        return 0;
    }
    for (i64 i = before; i < taken->count; i++) {
        follow(t, known->request, taken->at[i], &s);
        add_chunk(t, tier, known, &s, taken->at[i]);
    }
    return 1;
}

static i64 picoseconds(tier_store *store, double seconds)
{
    double ps = rint(seconds * PS_PER_S);
    if (!(ps < (double)(NEVER / 4)))
        fail(store->memory, BAD_INPUT, "the time of a KV transfer is out of bounds: %g s", seconds);
    return (i64)ps;
}

static i64 payload_ps(tier_store *store, i64 chunks)
{
    return picoseconds(store, (double)chunks * store->chunk_bytes / store->tier.bytes_per_s);
}

/* Start to copy reserved chunks to this tier; return the instant of arrival. */
static i64 write_chunks(tier_stack *t, i64 tier, table *known, const places *written, i64 now_ps)
{
    tier_store *store = t->stores[tier];
    store->write_free_ps = MAX(store->write_free_ps, now_ps) + payload_ps(store, written->count);
    i64 end_ps = store->write_free_ps + store->tier.latency_ps;
    stretch s = {0};
    for (i64 i = 0; i < written->count; i++) {
        chunk *c = chunk_at(t, tier, known, written->at[i], &s);
        REQUIRE(t->memory, c);
        c->ready_ps = c->busy_ps = end_ps;
    }
    store->use.stored += written->count;
    return end_ps;
}

/* Start to copy chunks to the tier above; return the instant of arrival. They are not evicted before. */
static i64 read_chunks(tier_stack *t, i64 tier, table *known, const places *read, i64 now_ps)
{
    tier_store *store = t->stores[tier];
    store->read_free_ps = MAX(store->read_free_ps, now_ps) + payload_ps(store, read->count);
    i64 end_ps = store->read_free_ps + store->tier.latency_ps;
    stretch s = {0};
    for (i64 i = 0; i < read->count; i++) {
        chunk *c = chunk_at(t, tier, known, read->at[i], &s);
        if (c) /* else the tier had no space to keep it */
            c->busy_ps = MAX(c->busy_ps, end_ps);
    }
    store->use.loaded += read->count;
    return end_ps;
}

/* the tiers of an engine */

/* Entries for all shared chunks. */
static void place_shared(const tier_stack *t, tier_store *store)
{
    i64 num_keys = t->contents->num_keys;
    i64 *begin = take_memory(t->memory, (size_t)(num_keys + 1) * sizeof *begin);
    begin[0] = 1;
    for (i64 key = 0; key < num_keys; key++)
        begin[key + 1] = begin[key] + (t->first_number[key + 1] - t->first_number[key]) / t->chunk_blocks + 1;
    store->shared = begin;
    store->first_own = begin[num_keys];
    RESERVE(t->memory, &store->chunks, store->first_own);
    store->chunks.count = store->first_own;
    store->shared_together = take_memory(t->memory, (size_t)(num_keys + 1) * sizeof(uint32_t));
}

void tier_stack_init(tier_stack *t, memory *m, const core_engine *setup, const core_requests *requests)
{
    t->memory = m;
    t->chunk_blocks = setup->chunk_blocks;
    t->chunk_tokens = setup->block_size * setup->chunk_blocks;
    t->synchronous = setup->offload_synchronous != 0;
    t->num_stores = setup->num_tiers;
    for (i64 i = 0; i < t->num_stores; i++) {
        t->stores[i] = tier_store_new(m, setup->tiers[i], setup->chunk_bytes);
        t->stores[i]->returns = setup->role != ROLE_BOTH;
        t->stores[i]->own_together = take_memory(m, (size_t)MAX(requests->count, 1) * sizeof(uint32_t));
    }
    if (setup->contents && setup->contents->offsets) {
        t->contents = setup->contents;
        t->first_number = number_contents(m, t->contents, requests->count);
        for (i64 i = 0; i < t->num_stores; i++)
            place_shared(t, t->stores[i]);
    }
}

/* The contiguous run of chunks from position `first` on that can be read from the tiers. Touches all `chunks`. */
const tier_hit *find_below(tier_stack *t, table *known, i64 first, i64 chunks, i64 now_ps)
{
    tier_hit *h = &t->hit;
    h->places.count = h->tiers.count = 0;
    for (i64 i = 0; i < t->num_stores; i++)
        touch(t, i, known, chunks);
    stretch s = {0};
    for (i64 place = first; place < chunks; place++) {
        i64 tier = 0;
        for (; tier < t->num_stores; tier++) {
            const chunk *c = chunk_at(t, tier, known, place, &s);
            if (c && c->ready_ps <= now_ps)
                break;
        }
        if (tier == t->num_stores)
            break;
        PUSH(t->memory, &h->places, place);
        PUSH(t->memory, &h->tiers, tier);
    }
    return h;
}

/* Keep chunks that come from the tier below and arrive at `ready_ps`, if there is space. */
static void arrive(tier_stack *t, table *known, i64 ready_ps, i64 now_ps)
{
    t->taken.count = 0;
    reserve(t, 0, known, &t->wanted, &t->taken, now_ps);
    stretch s = {0};
    for (i64 i = 0; i < t->taken.count; i++) {
        chunk *c = chunk_at(t, 0, known, t->taken.at[i], &s);
        c->ready_ps = c->busy_ps = ready_ps;
        t->stores[0]->use.stored++;
    }
}

/* Load chunks to the GPU, those of the second tier through the first; return the instant of arrival. */
i64 load_from_below(tier_stack *t, table *known, const tier_hit *h, i64 now_ps)
{
    i64 ready_ps = now_ps;
    t->wanted.count = 0;
    for (i64 i = 0; i < h->places.count; i++)
        if (h->tiers.at[i])
            PUSH(t->memory, &t->wanted, h->places.at[i]);
    if (t->wanted.count) {
        ready_ps = read_chunks(t, 1, known, &t->wanted, now_ps);
        arrive(t, known, ready_ps, now_ps);
    }
    return read_chunks(t, 0, known, &h->places, ready_ps);
}

/* Reserve space in the nearest tier for the chunks from position `first` on; see `reserve`. */
int reserve_below(tier_stack *t, table *known, i64 first, i64 stop, places *taken, i64 now_ps)
{
    t->wanted.count = 0;
    remember_slabs(t, known, stop);
    for (i64 place = first; place < stop; place++)
        PUSH(t->memory, &t->wanted, place);
    return reserve(t, 0, known, &t->wanted, taken, now_ps);
}

void touch_nearest(tier_stack *t, table *known, i64 chunks) { touch(t, 0, known, chunks); }

/* Copy reserved chunks from the GPU to the first tier, then from tier to tier. */
void store_below(tier_stack *t, table *known, const places *stored, i64 now_ps)
{
    i64 end_ps = write_chunks(t, 0, known, stored, now_ps);
    if (t->num_stores == 1)
        return;
    t->taken.count = 0;
    if (reserve(t, 1, known, stored, &t->taken, now_ps) && t->taken.count)
        write_chunks(t, 1, known, &t->taken, end_ps);
}

void count_hit_tokens(tier_stack *t, i64 tier, i64 tokens) { t->stores[tier]->use.hit_tokens += tokens; }

i64 tier_stack_use(const tier_stack *t, core_tier_use *uses)
{
    for (i64 i = 0; i < t->num_stores; i++) {
        uses[i] = t->stores[i]->use;
        uses[i].held = t->stores[i]->held;
    }
    return t->num_stores;
}

/* Paged KV cache of vLLM V0, which stores each content once: kv_cache/content_pool.py.
 *
 * Blocks are numbers. A shared content has a number of its own. A private content can only be hit by its own request,
 * which finds it in its table: the former entries of `table.blocks` stay in memory after its release, and each block
 * stores its owner. Blocks without references form one chain per table that released them, the deepest first, and the
 * chains form a heap. Its order equals Python's (accessed, -depth, pushed), because a block that is referenced again
 * is released by a table that was accessed later. In a table, `start` is the first private block, and `held` is the
 * number of blocks that its request held before.
 */
#include "content_pool.h"
#include "contents.h"

#define NONE (-1)
#define NO_CONTENT INT64_MIN

/* One physical block; `key` is its content once it is full, `depth` its position in the chain of contents. */
typedef struct {
    i64 key; /* at least 0: number of a shared content; ~request: its own number `depth`; or NO_CONTENT */
    int32_t depth, references, computed;
    int32_t shallower, deeper; /* next block in the chain of released blocks; of an empty block, the next empty one */
    int32_t chain;
} content_block;

/* Blocks that one table released and that are not allocated since. */
typedef struct {
    i64 released;           /* sequence number of the release */
    int32_t deepest, place; /* position in the heap; of an unused chain, the next unused one */
} chain;

/* A chain in the heap with its sort key: the clock of its user and its depth. */
typedef struct {
    i64 accessed;
    int32_t depth, chain;
} candidate;

typedef struct {
    pool base;
    content_block *blocks;
    i64 unused;          /* blocks from this number on were never allocated */
    int32_t empty;       /* first block released without content */
    int32_t *by_key;     /* of shared contents: block + 1 */
    i64 *first_key;      /* of each run key: the number of its first content */
    chain *chains;
    i64 unused_chains, releases;
    int32_t free_chain;
    candidate *heap;
    i64 heap_count;
    VEC(int32_t) touched;
} content_pool;

static const pool_ops CONTENT_POOL;

static int32_t narrow(i64 number) { return (int32_t)number; }

pool *content_pool_new(memory *m, const core_engine *setup, const core_requests *requests)
{
    content_pool *q = take_memory(m, sizeof *q);
    pool *p = &q->base;
    REQUIRE(m, setup->num_blocks >= 1 && setup->num_blocks < INT32_MAX && setup->block_size >= 1);
    p->ops = &CONTENT_POOL;
    p->memory = m;
    p->num_blocks = p->free_blocks = setup->num_blocks;
    p->block_size = setup->block_size;
    p->prefix_caching = setup->prefix_caching != 0;
    if (p->prefix_caching && setup->contents != NULL && setup->contents->offsets != NULL) {
        p->contents = setup->contents;
        q->first_key = number_contents(m, p->contents, requests->count);
        q->by_key = take_memory(m, (size_t)(q->first_key[p->contents->num_keys] + 1) * sizeof *q->by_key);
    }
    q->blocks = take_memory(m, (size_t)p->num_blocks * sizeof *q->blocks);
    q->chains = take_memory(m, (size_t)p->num_blocks * sizeof *q->chains);
    q->heap = take_memory(m, (size_t)p->num_blocks * sizeof *q->heap);
    q->empty = q->free_chain = NONE;
    return p;
}

static void open_table(pool *p, table *t, i64 request)
{
    t->request = request;
    t->blocks.count = t->held = 0;
    t->accessed = t->remembered_hit = MISSING;
    t->start = own_from(p->contents, request);
}

static i64 held_blocks(const pool *p, const table *t)
{
    (void)p;
    return t->blocks.count;
}

/* contents */

static i64 shared_key(const content_pool *q, const table *t, i64 index)
{
    return content_number(q->base.contents, q->first_key, t->request, index);
}

/* The block with the request's content at `index`, or NONE. */
static int32_t find(const content_pool *q, const table *t, i64 index)
{
    if (index < t->start)
        return q->by_key[shared_key(q, t, index)] - 1;
    if (index >= t->held)
        return NONE;
    i64 number = t->blocks.at[index];
    int found = q->blocks[number].key == ~t->request && q->blocks[number].depth == index;
    return found ? narrow(number) : NONE;
}

static int is_cached(const content_pool *q, const table *t, i64 index)
{
    int32_t number = find(q, t, index);
    return number != NONE && (q->blocks[number].references == 0 || q->blocks[number].computed);
}

/* Cached tokens among the first `tokens`. Later attempts repeat the result of the first one. */
i64 content_pool_cached_tokens(pool *p, table *t, i64 tokens)
{
    if (!p->prefix_caching)
        return 0;
    if (t->remembered_hit == MISSING) {
        i64 missing = 0, high = tokens / p->block_size;
        while (missing < high) { /* bisection, though evictions may have left holes */
            i64 middle = (missing + high) / 2;
            if (is_cached((content_pool *)p, t, middle))
                missing = middle + 1;
            else
                high = middle;
        }
        t->remembered_hit = missing * p->block_size;
    }
    return t->remembered_hit;
}

/* the order of eviction */

static int comes_before(const content_pool *q, candidate a, candidate b)
{
    if (a.accessed != b.accessed)
        return a.accessed < b.accessed;
    return a.depth != b.depth ? a.depth > b.depth : q->chains[a.chain].released < q->chains[b.chain].released;
}

static void put_in_heap(content_pool *q, i64 place, candidate one)
{
    q->heap[place] = one;
    q->chains[one.chain].place = narrow(place);
}

static void move_up(content_pool *q, i64 place)
{
    candidate one = q->heap[place];
    while (place > 0 && comes_before(q, one, q->heap[(place - 1) / 2])) {
        put_in_heap(q, place, q->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put_in_heap(q, place, one);
}

static void move_down(content_pool *q, i64 place)
{
    candidate one = q->heap[place];
    for (;;) {
        i64 child = 2 * place + 1;
        if (child >= q->heap_count)
            break;
        if (child + 1 < q->heap_count && comes_before(q, q->heap[child + 1], q->heap[child]))
            child++;
        if (!comes_before(q, q->heap[child], one))
            break;
        put_in_heap(q, place, q->heap[child]);
        place = child;
    }
    put_in_heap(q, place, one);
}

static int32_t take_chain(content_pool *q)
{
    int32_t number = q->free_chain;
    if (number != NONE)
        q->free_chain = q->chains[number].place;
    else
        number = narrow(q->unused_chains++);
    q->chains[number] = (chain){.released = q->releases++, .deepest = NONE};
    return number;
}

static void drop_chain(content_pool *q, int32_t number)
{
    i64 place = q->chains[number].place;
    candidate last = q->heap[--q->heap_count];
    if (last.chain != number) {
        put_in_heap(q, place, last);
        move_up(q, place);
        move_down(q, q->chains[last.chain].place);
    }
    q->chains[number].place = q->free_chain;
    q->free_chain = number;
}

/* Remove a block from the chain of its release. */
static void unchain(content_pool *q, int32_t number)
{
    content_block *block = &q->blocks[number];
    chain *its_chain = &q->chains[block->chain];
    if (block->shallower != NONE)
        q->blocks[block->shallower].deeper = block->deeper;
    if (block->deeper != NONE) {
        q->blocks[block->deeper].shallower = block->shallower;
        return;
    }
    its_chain->deepest = block->shallower;
    if (its_chain->deepest == NONE) {
        drop_chain(q, block->chain);
        return;
    }
    q->heap[its_chain->place].depth = q->blocks[its_chain->deepest].depth;
    move_down(q, its_chain->place);
}

/* blocks */

static void give_back_empty(content_pool *q, int32_t number)
{
    q->blocks[number].deeper = q->empty;
    q->empty = number;
    q->base.free_blocks++;
}

static void hold(content_pool *q, int32_t number)
{
    content_block *block = &q->blocks[number];
    if (block->references == 0) {
        unchain(q, number);
        q->base.free_blocks--;
        block->computed = 1;
    }
    block->references++;
}

static int32_t take(content_pool *q)
{
    int32_t number = q->empty;
    if (number != NONE) {
        q->empty = q->blocks[number].deeper;
    } else if (q->unused < q->base.num_blocks) {
        number = narrow(q->unused++);
    } else {
        REQUIRE(q->base.memory, q->heap_count > 0);
        number = q->chains[q->heap[0].chain].deepest;
        unchain(q, number);
        if (q->blocks[number].key >= 0)
            q->by_key[q->blocks[number].key] = 0;
    }
    q->base.free_blocks--;
    q->blocks[number] = (content_block){.key = NO_CONTENT, .references = 1};
    return number;
}

/* The last block of the table is full: register its content, or replace the block by an equal one. */
void content_pool_fill_last(pool *p, table *t)
{
    content_pool *q = (content_pool *)p;
    if (!p->prefix_caching)
        return;
    i64 index = t->blocks.count - 1, key = ~t->request;
    int32_t number = narrow(t->blocks.at[index]);
    if (index < t->start) {
        key = shared_key(q, t, index);
        int32_t known = q->by_key[key] - 1;
        if (known != NONE) {
            REQUIRE(p->memory, q->blocks[known].depth == index);
            give_back_empty(q, number);
            hold(q, known);
            t->blocks.at[index] = known;
            return;
        }
        q->by_key[key] = number + 1;
    } /* a private content is filled once, or found when the request is admitted again */
    q->blocks[number].key = key;
    q->blocks[number].depth = narrow(index);
    PUSH(p->memory, &q->touched, number);
}

void content_pool_take_last(pool *p, table *t)
{
    PUSH(p->memory, &t->blocks, take((content_pool *)p));
}

/* Allocate blocks for a prompt of `tokens` tokens: shared where the content exists, else new ones. */
void content_pool_allocate(pool *p, table *t, i64 tokens)
{
    content_pool *q = (content_pool *)p;
    i64 full = tokens / p->block_size;
    REQUIRE(p->memory, t->blocks.count == 0);
    for (i64 index = 0; index < full; index++) {
        int32_t known = p->prefix_caching ? find(q, t, index) : NONE;
        if (known != NONE) {
            REQUIRE(p->memory, q->blocks[known].depth == index);
            hold(q, known);
            PUSH(p->memory, &t->blocks, known);
        } else {
            content_pool_take_last(p, t);
            content_pool_fill_last(p, t);
        }
    }
    if (tokens % p->block_size)
        content_pool_take_last(p, t);
}

/* Free all blocks; those with content can be hit until they are reused. */
static void release(pool *p, table *t)
{
    content_pool *q = (content_pool *)p;
    int32_t chain_number = NONE, deepest = NONE;
    for (i64 index = 0; index < t->blocks.count; index++) {
        int32_t number = narrow(t->blocks.at[index]);
        content_block *block = &q->blocks[number];
        if (--block->references)
            continue;
        if (block->key == NO_CONTENT) {
            give_back_empty(q, number);
            continue;
        }
        if (chain_number == NONE)
            chain_number = take_chain(q);
        block->chain = chain_number;
        block->shallower = deepest;
        block->deeper = NONE;
        if (deepest != NONE)
            q->blocks[deepest].deeper = number;
        deepest = number;
        p->free_blocks++;
    }
    if (chain_number != NONE) {
        q->chains[chain_number].deepest = deepest;
        candidate new = {.accessed = t->accessed, .depth = q->blocks[deepest].depth, .chain = chain_number};
        put_in_heap(q, q->heap_count++, new);
        move_up(q, q->heap_count - 1);
    }
    t->held = MAX(t->held, t->blocks.count);
    t->blocks.count = 0;
    t->remembered_hit = MISSING;
}

/* Mark new content as computed once the step that touched it is scheduled. */
void content_pool_mark_computed(pool *p)
{
    content_pool *q = (content_pool *)p;
    for (i64 i = 0; i < q->touched.count; i++)
        q->blocks[q->touched.at[i]].computed = 1;
    q->touched.count = 0;
}

static const pool_ops CONTENT_POOL = {.open = open_table, .release = release, .held_blocks = held_blocks};

/* Runs of cached KV blocks: registered, looked up, split, dropped and evicted. */
#include "runs.h"

enum { SLAB = 256 };

void init_runs(run_store *s, const pool_ops *ops, memory *m, const core_engine *setup,
               const core_requests *requests, i64 num_groups)
{
    s->pool.ops = ops;
    s->pool.memory = m;
    s->pool.contents = setup->contents && setup->contents->offsets ? setup->contents : NULL;
    s->pool.num_blocks = s->pool.free_blocks = setup->num_blocks;
    s->pool.block_size = setup->block_size;
    s->pool.prefix_caching = setup->prefix_caching != 0;
    s->num_groups = num_groups;
    s->rules = setup->rules;
    s->shift = -1;
    for (int shift = 0; shift < 62; shift++)
        if ((i64)1 << shift == setup->block_size)
            s->shift = shift;
    s->queue.before = s->queue.after = &s->queue;
    if (!s->pool.prefix_caching)
        return;
    s->owner_of = take_memory(m, (size_t)MAX(requests->count, 1) * sizeof *s->owner_of);
    if (s->pool.contents)
        s->shared = take_memory(m, (size_t)(s->pool.contents->num_keys * num_groups) * sizeof *s->shared);
}

/* runs and owners of their memory */

/* Memory is reused in the order of its release, so that memory released together is contiguous. */
static void put_away(run_store *s, run *r)
{
    r->after = NULL;
    if (s->unused)
        s->last_unused->after = r;
    else
        s->unused = r;
    s->last_unused = r;
}

static run *unused_run(run_store *s)
{
    if (!s->unused) {
        run *slab = take_memory(s->pool.memory, SLAB * sizeof *slab);
        for (int i = 0; i < SLAB; i++)
            put_away(s, &slab[i]);
    }
    run *r = s->unused;
    s->unused = r->after;
    return r;
}

static run *new_run(run_store *s, span *of, uint32_t number, i64 start, i64 stop)
{
    REQUIRE(s->pool.memory, stop <= INT32_MAX);
    run *r = unused_run(s);
    r->span = of;
    r->before = r->after = r->right = NULL;
    r->start = (int32_t)start;
    r->stop = (int32_t)stop;
    r->references = 1;
    r->owner = number;
    return r;
}

static void add_owners(run_store *s)
{
    size_t bytes = sizeof(owner) + (size_t)s->num_groups * sizeof(span);
    char *slab = take_memory(s->pool.memory, SLAB * bytes);
    if (s->owners.count == 0)
        PUSH(s->pool.memory, &s->owners, NULL); /* number 0: none */
    RESERVE(s->pool.memory, &s->owners, s->owners.count + SLAB);
    i64 first = s->owners.count;
    REQUIRE(s->pool.memory, first + SLAB < HAS_STRETCHES);
    for (i64 i = 0; i < SLAB; i++) {
        owner *o = (owner *)(slab + (size_t)i * bytes);
        o->request = i + 1 < SLAB ? first + i + 1 : 0;
        s->owners.at[s->owners.count++] = o;
    }
    s->unused_owner = (uint32_t)first;
}

static uint32_t owner_number(run_store *s, i64 request)
{
    uint32_t known = s->owner_of[request], number = known & ~HAS_STRETCHES;
    if (number)
        return number;
    if (!s->unused_owner)
        add_owners(s);
    number = s->unused_owner;
    owner *o = s->owners.at[number];
    s->unused_owner = (uint32_t)o->request;
    o->request = request;
    s->owner_of[request] = number | (known & HAS_STRETCHES);
    return number;
}

/* The newest copy of its blocks. */
static void append_to_span(run_store *s, run *r)
{
    span *of = r->span;
    r->older = of->last;
    r->newer = NULL;
    if (of->last) {
        of->last->newer = r;
    } else {
        of->first = r;
        if (r->owner)
            s->owners.at[r->owner]->num_spans++;
    }
    of->last = r;
}

/* Its content is gone. */
static void forget_run(run_store *s, run *r)
{
    span *of = r->span;
    if (r->older)
        r->older->newer = r->newer;
    else
        of->first = r->newer;
    if (r->newer)
        r->newer->older = r->older;
    else
        of->last = r->older;
    if (!of->first && r->owner) {
        owner *o = s->owners.at[r->owner];
        if (--o->num_spans == 0) {
            s->owner_of[o->request] &= HAS_STRETCHES;
            o->request = s->unused_owner;
            s->unused_owner = r->owner;
        }
    }
    put_away(s, r);
}

void evict_runs(run_store *s)
{
    REQUIRE(s->pool.memory, s->pool.free_blocks >= 0);
    i64 blocks = s->evictable - s->pool.free_blocks;
    s->evictable -= blocks;
    run *r = s->queue.after;
    while (blocks) {
        i64 size = r->stop - r->start;
        if (!r->span)
            size = size * r->num_groups - r->gone;
        if (size > blocks) {
            if (r->span)
                r->stop -= (int32_t)blocks;
            else
                r->gone += blocks;
            break;
        }
        blocks -= size;
        run *after = r->after;
        if (r->span) {
            forget_run(s, r);
        } else {
            put_away(s, r);
        }
        r = after;
        __builtin_prefetch(r->after);
    }
    s->queue.after = r;
    r->before = &s->queue;
}

/* look-up */

static i64 num_spans(const run_store *s, i64 request)
{
    const core_contents *c = s->pool.contents;
    return c ? c->offsets[request + 1] - c->offsets[request] : 0;
}

/* Start of a request's private text, which is the end of what it shares. */
i64 private_start(const run_store *s, i64 request)
{
    i64 count = num_spans(s, request);
    return count ? s->pool.contents->stops[s->pool.contents->offsets[request] + count - 1] : 0;
}

static span *shared_span(const run_store *s, i64 request, i64 group, i64 number)
{
    const core_contents *c = s->pool.contents;
    return &s->shared[c->keys[c->offsets[request] + number] * s->num_groups + group];
}

static span *private_span(const run_store *s, i64 request, i64 group)
{
    uint32_t number = s->owner_of[request] & ~HAS_STRETCHES;
    return number ? &s->owners.at[number]->spans[group] : NULL;
}

/* The copies of one span from a block on and their reach: the first cached copy of each block. */
static i64 follow_span(run_store *s, const span *of, i64 at, i64 limit)
{
    while (at < limit) {
        i64 to = limit;
        run *r = of->first;
        for (; r && !(r->start <= at && at < r->stop); r = r->newer)
            if (at < r->start && r->start < to)
                to = r->start; /* an older copy continues there */
        if (!r)
            break;
        to = MIN(to, r->stop);
        piece found = {r, at, to};
        PUSH(s->pool.memory, &s->pieces, found);
        at = to;
    }
    return at;
}

/* Longest cached prefix of at most `limit` blocks, added to the pieces. */
i64 follow_runs(run_store *s, i64 request, i64 group, i64 limit)
{
    i64 at = 0, count = num_spans(s, request);
    for (i64 i = 0; i < count; i++) {
        if (at >= limit)
            return at;
        i64 stop = s->pool.contents->stops[s->pool.contents->offsets[request] + i];
        at = follow_span(s, shared_span(s, request, group, i), at, MIN(stop, limit));
        if (at < stop)
            return at;
    }
    const span *of = at < limit ? private_span(s, request, group) : NULL;
    return of ? follow_span(s, of, at, limit) : at;
}

/* The first cached copy of a block. `start`: the first block for which the result is the same. */
static run *copy_of(const span *of, i64 block, i64 *start)
{
    for (run *r = of->first; r; r = r->newer) {
        if (r->start <= block && block < r->stop) {
            *start = MAX(*start, r->start);
            return r;
        }
        if (r->stop <= block && r->stop > *start)
            *start = r->stop;
    }
    return NULL;
}

/* Search right to left for `needed` contiguous cached blocks, or a run that reaches block 0. Return where they end. */
i64 follow_back(run_store *s, i64 request, i64 group, i64 limit, i64 needed, i64 *start)
{
    i64 first = s->pieces.count, at = limit, end = limit;
    i64 number = num_spans(s, request), begin = private_start(s, request);
    const span *of = private_span(s, request, group);
    while (at > 0 && (at == end || end - at < needed)) {
        while (at <= begin && number > 0) {
            number--;
            begin = number ? s->pool.contents->stops[s->pool.contents->offsets[request] + number - 1] : 0;
            of = shared_span(s, request, group, number);
        }
        i64 from = begin;
        run *r = of ? copy_of(of, at - 1, &from) : NULL;
        if (r) {
            piece found = {r, MAX(from, end - MAX(needed, 1)), at};
            PUSH(s->pool.memory, &s->pieces, found);
            at = found.start;
        } else {
            s->pieces.count = first;
            at = end = from;
        }
    }
    for (i64 i = first, j = s->pieces.count - 1; i < j; i++, j--) {
        piece other = s->pieces.at[i];
        s->pieces.at[i] = s->pieces.at[j];
        s->pieces.at[j] = other;
    }
    *start = at;
    return end;
}

/* allocation */

static void leave_queue(run_store *s, run *r)
{
    i64 size = r->stop - r->start;
    r->before->after = r->after;
    r->after->before = r->before;
    r->before = r->after = NULL;
    s->pool.free_blocks -= size;
    s->evictable -= size;
}

/* Split the run at a block; it keeps the left half. Return the right half. */
static run *split_run(run_store *s, run *r, i64 at)
{
    run *right = new_run(s, r->span, r->owner, at, r->stop);
    right->references = r->references;
    right->right = r->right;
    r->stop = (int32_t)at;
    r->right = right;
    right->older = r;
    right->newer = r->newer;
    if (r->newer)
        r->newer->older = right;
    else
        r->span->last = right;
    r->newer = right;
    if (r->before) { /* the deeper half is evicted first */
        right->before = r->before;
        right->before->after = right;
        right->after = r;
        r->before = right;
    }
    return right;
}

/* Reference the blocks of a piece; split its run if the piece is only a part of it. */
void take_piece(run_store *s, part_list *held, piece found)
{
    run *r = found.run;
    while (r->stop <= found.start)
        r = r->right; /* an earlier piece of the same hit has split it */
    if (r->start < found.start)
        r = split_run(s, r, found.start);
    if (r->stop > found.stop)
        split_run(s, r, found.stop);
    if (r->references == 0)
        leave_queue(s, r);
    r->references++;
    part taken = {r, found.stop};
    PUSH(s->pool.memory, held, taken);
}

/* Whether the last run that a request holds can be extended by the next blocks: no copy is newer than it is. */
static int ends_in(const part_list *held, i64 block)
{
    if (!held->count)
        return 0;
    const run *last = held->at[held->count - 1].run;
    return last->stop == block && last->references == 1 && !last->newer;
}

static void register_run(run_store *s, part_list *held, span *of, i64 start, i64 stop)
{
    if (ends_in(held, start) && held->at[held->count - 1].run == of->last) {
        part *last = &held->at[held->count - 1];
        REQUIRE(s->pool.memory, stop <= INT32_MAX);
        last->run->stop = (int32_t)stop;
        last->stop = stop;
        return;
    }
    run *r = new_run(s, of, 0, start, stop);
    append_to_span(s, r);
    part added = {r, stop};
    PUSH(s->pool.memory, held, added);
}

/* None of these blocks is private. */
void register_shared_runs(run_store *s, part_list *held, i64 request, i64 group, i64 start, i64 stop)
{
    const i64 *stops = &s->pool.contents->stops[s->pool.contents->offsets[request]];
    for (i64 i = 0; start < stop; i++)
        if (start < stops[i]) {
            i64 end = MIN(stops[i], stop);
            register_run(s, held, shared_span(s, request, group, i), start, end);
            start = end;
        }
}

/* release */

/* A part whose run was split while it was held: its runs, the deepest first. */
void drop_part(run_store *s, part held)
{
    s->split.count = 0;
    run *r = held.run;
    PUSH(s->pool.memory, &s->split, r);
    while (r->stop < held.stop) {
        r = r->right;
        PUSH(s->pool.memory, &s->split, r);
    }
    while (s->split.count)
        drop_run(s, s->split.at[--s->split.count]);
}

/* Split the run at a block; it keeps the right half, and the left half is dropped. No other request holds it. */
static void drop_left(run_store *s, run *r, i64 at)
{
    run *left = new_run(s, r->span, r->owner, r->start, at);
    r->start = (int32_t)at;
    left->newer = r;
    left->older = r->older;
    if (r->older)
        r->older->newer = left;
    else
        r->span->first = left;
    r->older = left;
    free_run(s, left);
}

/* Drop the blocks before `stop`, the last one first. */
void drop_front(run_store *s, part_list *held, i64 stop)
{
    i64 gone = 0;
    while (gone < held->count && held->at[gone].stop <= stop)
        gone++;
    if (gone < held->count && held->at[gone].run->start < stop) {
        part *cut = &held->at[gone];
        run *r = cut->run;
        while (r->stop <= stop)
            r = r->right;
        part before = {cut->run, r->start};
        int whole = cut->run == r;
        cut->run = r;
        if (r->start < stop) {
            if (r->references == 1) {
                drop_left(s, r, stop);
            } else {
                cut->run = split_run(s, r, stop);
                r->references--;
            }
        }
        if (!whole)
            drop_part(s, before);
    }
    for (i64 i = gone - 1; i >= 0; i--)
        drop_part(s, held->at[i]);
    if (gone) {
        held->count -= gone;
        memmove(held->at, held->at + gone, (size_t)held->count * sizeof *held->at);
    }
}

/* nameless stretches of blocks */

/* A stretch of no request: nothing can hit it. */
void queue_uncached(run_store *s, i64 blocks)
{
    run *r = unused_run(s), *last = s->queue.before;
    *r = (run){.before = last, .after = &s->queue, .request = MISSING, .num_groups = 1, .stop = (int32_t)blocks};
    last->after = r;
    s->queue.before = r;
    s->evictable += blocks;
}

void free_new_stretch(run_store *s, i64 request, i64 group, i64 start, i64 stop)
{
    REQUIRE(s->pool.memory, stop <= INT32_MAX);
    run *r = unused_run(s), *last = s->queue.before;
    *r = (run){.before = last, .after = &s->queue, .request = request, .group = (int32_t)group, .num_groups = 1,
               .start = (int32_t)start, .stop = (int32_t)stop};
    last->after = r;
    s->queue.before = r;
    s->owner_of[request] |= HAS_STRETCHES;
}

/* The runs that a stretch represents, at its position in the queue. */
static void name_stretch(run_store *s, run *stretch, uint32_t number)
{
    run of = *stretch, *before = of.before;
    i64 size = of.stop - of.start;
    for (i64 i = of.gone / size; i < of.num_groups; i++) {
        i64 stop = i == of.gone / size ? of.stop - of.gone % size : of.stop;
        run *r = new_run(s, &s->owners.at[number]->spans[of.group + i], number, of.start, stop);
        r->references = 0;
        append_to_span(s, r);
        r->before = before;
        before->after = r;
        before = r;
    }
    before->after = of.after;
    of.after->before = before;
    put_away(s, stretch);
}

void name_stretches(run_store *s, i64 request)
{
    run *after;
    for (run *r = s->queue.after; r != &s->queue; r = after) {
        after = r->after;
        if (!r->span && r->request == request)
            name_stretch(s, r, owner_number(s, request));
    }
    s->owner_of[request] &= ~HAS_STRETCHES;
}

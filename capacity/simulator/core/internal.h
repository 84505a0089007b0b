/* Internals of the core: sequences, steps, pools and policies. One file per policy and per pool; names and order
 * follow the Python policies, which are the specification. */
#ifndef CAPACITY_INTERNAL_H
#define CAPACITY_INTERNAL_H

#include <setjmp.h>
#include <stddef.h>
#include <string.h>

#include "core.h"
#include "step_times.h"

#ifndef _WIN32 /* these functions are not exported: calls need no indirection */
#pragma GCC visibility push(hidden)
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
static inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; } /* a >= 0 */

/* memory.c: all memory of a fleet is freed with it, even if a call was aborted. */
typedef struct memory {
    struct block *blocks;
    jmp_buf on_error; /* set by every public function */
    int error;
    char message[256];
} memory;
void *take_memory(memory *m, size_t bytes); /* zeroed, never NULL; aborts the call on failure */
void *resize_memory(memory *m, void *old, size_t old_bytes, size_t bytes);
void free_memory(memory *m, void *what);
void free_all_memory(memory *m);
_Noreturn void fail(memory *m, int error, const char *format, ...);
#define REQUIRE(m, condition) ((condition) ? (void)0 : fail((m), BROKEN, "%s:%d: %s", __FILE__, __LINE__, #condition))

/* A growing array: VEC(type) name; then push(m, &name, value). */
#define VEC(type) struct { type *at; i64 count, room; }
#define RESERVE(m, v, n) \
    do { \
        if ((v)->room < (n)) { \
            i64 room_ = MAX((v)->room * 2, (n) < 8 ? 8 : (n)); \
            (v)->at = resize_memory((m), (v)->at, (size_t)(v)->room * sizeof *(v)->at, (size_t)room_ * sizeof *(v)->at); \
            (v)->room = room_; \
        } \
    } while (0)
#define PUSH(m, v, value) \
    do { \
        if ((v)->count == (v)->room) RESERVE((m), (v), (v)->count + 1); \
        (v)->at[(v)->count++] = (value); \
    } while (0)
#define REMOVE_AT(v, i) \
    (memmove(&(v)->at[i], &(v)->at[(i) + 1], (size_t)((v)->count - (i) - 1) * sizeof *(v)->at), (v)->count--)

typedef struct sequence sequence;
typedef struct pool pool;
typedef struct policy policy;
typedef struct engine engine;
typedef VEC(sequence *) sequences;

/* A double-ended queue of sequences (queue.c). */
typedef struct {
    sequence **at;
    i64 first, count, room; /* room is a power of two; entry i is at[(first + i) & (room - 1)] */
} queue;
void queue_append(memory *m, queue *q, sequence *r);
void queue_prepend(memory *m, queue *q, sequence *r);
void queue_insert(memory *m, queue *q, i64 place, sequence *r);
sequence *queue_pop(queue *q);
void queue_remove(queue *q, const sequence *r); /* it must be there */
static inline sequence *queue_at(const queue *q, i64 i) { return q->at[(q->first + i) & (q->room - 1)]; }

/* Part of a run of cached blocks (runs.h) that a request holds: from the start of the run, or from the end of the
 * previous part. */
typedef struct {
    struct run *run;
    i64 stop;
} part;
typedef VEC(part) part_list;

/* The KV blocks of one request, as its pool keeps them. */
typedef struct table {
    i64 request;         /* request that owns the content */
    i64 held, cached;    /* run pool: blocks in all, and those with content */
    i64 named;           /* run_pool.c: those of them that are parts of runs */
    i64 loaded;          /* tokens whose KV another engine sent; 0: none */
    part_list parts;          /* run_pool.c */
    struct group *groups;     /* block_pool.c: one a group of layers */
    i64 leaves_at;            /* block_pool.c: processed tokens at which the window passes a block */
    i64 accessed, remembered_hit;     /* content_pool.c */
    VEC(i64) blocks;                  /* content_pool.c */
    i64 start;                        /* contiguous_pool.c */
} table;

/* Result of the last lookup in a pool: number of cached tokens; the rest depends on the pool. */
typedef struct {
    i64 tokens;
} hit;

typedef struct {
    void (*open)(pool *p, table *t, i64 request);      /* an empty table; its memory may be reused */
    const hit *(*lookup)(pool *p, table *t, i64 max_tokens); /* valid until the next */
    i64 (*blocks_needed)(pool *p, const table *t, i64 tokens, const hit *h, int capped);
    void (*grow)(pool *p, table *t, i64 tokens, const hit *h);
    void (*cache)(pool *p, table *t, i64 tokens);
    void (*leave_window)(pool *p, table *t, i64 processed_tokens);
    void (*release)(pool *p, table *t);
    i64 (*held_blocks)(const pool *p, const table *t);
    int (*load)(pool *p, table *t, i64 tokens);         /* 0: too few free blocks */
    int (*hold_computed)(pool *p, table *t, i64 tokens, const hit *h);
} pool_ops;

struct pool {
    const pool_ops *ops;
    memory *memory;
    const core_contents *contents; /* NULL: nothing is shared */
    i64 num_blocks, block_size, free_blocks;
    int prefix_caching;
};
/* How many steps of vLLM V1 can be in flight: one per pipeline stage, one more if it is asynchronous. */
static inline i64 v1_steps_in_flight(const core_engine *setup)
{
    return setup->pipeline_stages + (setup->asynchronous != 0);
}
pool *run_pool_new(memory *m, const core_engine *setup, const core_requests *requests);   /* full attention */
pool *block_pool_new(memory *m, const core_engine *setup, const core_requests *requests); /* windows */
pool *contiguous_pool_new(memory *m, const core_engine *setup);
pool *content_pool_new(memory *m, const core_engine *setup, const core_requests *requests); /* V0's; content_pool.h */

enum { WAITING, RUNNING, FINISHED };

/* Fields that every row uses come first, in two cache lines. */
struct sequence {
    i64 known, max_known, computed, prompt_tokens;
    i64 in_flight_tokens, in_flight_yields, placeholders, drafts;
    i64 last_token;     /* instant; or MISSING */
    i64 rows_in_flight; /* rows of unsettled steps, and entries in the lists of requests that those preempted */
    i64 epoch;          /* vllm_v1.c: preemptions, by which rows of before are known */
    i64 preempted;      /* instant, until it runs again; or MISSING */
    int status, scheduled; /* scheduled: the first tokens of the request were */
    int mid_prefill;    /* its last row ended before its last known token */
    i64 room;           /* tokens with a slot in its blocks; 0: ask the pool */
    i64 next_full;      /* tokens at which the next block is full; 0: ask the pool */
    i64 next_leave;     /* processed tokens at which the window passes the next block; 0: ask the pool */
    i64 asked_known;    /* prompt and max_tokens, limited by the model */
    i64 request, arrival, priority, order;
    i64 engine; /* its number */
    i64 accepted, preemptions;
    i64 lost;          /* computed tokens that its last preemption discarded */
    const double *rates; /* acceptance rates of its drafts; NULL: not looked up yet */
    i64 first_token;   /* instant */
    i64 loaded;        /* tokens that its last load copied from a tier */
    i64 stored_chunks; /* chunks of its KV below the GPU */
    i64 rank;
    i64 adapter;       /* LoRA; 0: none */
    i64 next_call;    /* vllm_v1.c, staggered: the first call of `schedule` that may decode it again */
    i64 known_at_row; /* at its last generation row (batching.c) */
    int cancelled;
    int deferred;      /* it waits, and a step has skipped it */
    int kept;          /* its policy still uses it, though it has ended */
    int inside;        /* counted as one of the engine's requests */
    int growing;       /* its context does not fill the window yet */
    /* vllm_v1.c: place in the running list; decode_group.c: `computed` less the group's clock */
    i64 ticket, offset;
    i64 bucket, place_in_bucket; /* -1: in none */
    i64 chunk_bucket, place_in_chunk_bucket; /* + 1; 0: in none */
    int lags;          /* offload.c: no space for a copy of its KV */
    int drafted;       /* drafts.c: a member of the group */
    i64 place;         /* vllm_v1.c: in the running list, while that is unordered */
    i64 last_clock;    /* decode_group.c: its last step, and its neighbour in that step's list */
    sequence *next_end;
    sequence *next_free;
    i64 images, image_tokens, audio_tokens; /* a clip is the last image */
    i64 held_images;   /* encoder.c: in use */
    table table;
};

typedef struct {
    sequence *sequence;
    i64 tokens, computed, drafts, epoch, cached;
    int yields;
    int committed; /* vllm_v1.c: its token counts as computed already */
} row;

typedef struct step {
    VEC(row) rows;
    sequences preempted, finished;
    shape sums;           /* of its rows: count_row */
    VEC(i64) noted;       /* rows that the ledger needs: the first ones, and those after a preemption */
    /* deliveries that the ledger needs; those whose last one was at one common instant are only counted */
    sequences emitted;
    i64 common_last, common;
    sequences gone;       /* requests that had ended before their rows did */
    i64 start, end, held_ps;
    i64 call;             /* number of the call of `schedule` that returned it */
    int awaited;          /* it samples tokens that a later step may need */
    i64 slots;            /* of the steps in flight: its own, and those of steps without rows behind it */
    i64 stores;           /* offload.c: copies to make when it ends; -1: none */
    i64 num_parts;        /* lockstep.c: one a rank */
    struct step **parts;
    /* rows stored only as sums: the decode group of vllm_v1.c, and all rows of the parts */
    int grouped;
    i64 group, group_gap_ps;
    sequences ending; /* requests that it completes, in the order of the running list */
    struct step *next_free;
} step;

typedef struct {
    i64 max_num_seqs, max_num_batched_tokens, max_model_len, long_prefill_token_threshold, max_active;
    i64 watermark_blocks, prefill_schedule_interval, pipeline_stages;
    int priority, enable_chunked_prefill, reserve_full_isl;
    core_rules rules;
} limits;

typedef struct {
    int (*add)(policy *p, sequence *r); /* 0: rejected */
    void (*add_loaded)(policy *p, sequence *r);
    void (*schedule)(policy *p, step *s, i64 now_ps); /* `s` is empty */
    void (*update)(policy *p, step *s);               /* delivers, and fills s->finished in row order */
    void (*abort)(policy *p, sequence *r);
    i64 (*wake_ps)(const policy *p);                  /* NULL: no decision depends on the clock */
    i64 (*unfinished)(const policy *p);               /* NULL: running + waiting */
    i64 (*num_waiting)(const policy *p);              /* NULL: waiting */
    i64 (*num_running)(const policy *p);              /* NULL: running */
    i64 (*last_slot)(const policy *p, const sequence *r); /* NULL: max_known - 1 */
} policy_ops;

struct policy {
    const policy_ops *ops;
    memory *memory;
    pool *pool;
    limits limits;
    i64 steps_in_flight;
    i64 empty_steps; /* most steps without rows that one decision adds to those in flight */
    int asynchronous; /* the next step is decided while one runs */
    int staggers;     /* a decode waits for as many calls of `schedule` as there are pipeline stages */
    int aborts, reserves_to_end, can_hold_prompts, holds_prompts;
    i64 window_tokens;  /* clips contexts in step shapes; NEVER: none */
    int streams;        /* deliveries are streamed through a queue */
    const i64 *windows; /* of the pool's groups of layers; -1: full attention */
    i64 num_windows;
    sequences running;
    queue waiting;
};
policy *vllm_v1_new(memory *m, const core_engine *setup, pool *p);
policy *offloading_v1_new(memory *m, const core_engine *setup, pool *p, const core_requests *requests);
policy *adapter_v1_new(memory *m, const core_engine *setup, pool *p);
policy *vllm_v0_new(memory *m, const core_engine *setup, pool *p);
policy *sglang_new(memory *m, const core_engine *setup, pool *p);
policy *tensorrt_llm_new(memory *m, const core_engine *setup, pool *p);
policy *tgi_new(memory *m, const core_engine *setup, pool *p);
policy *static_new(memory *m, const core_engine *setup, pool *p);
policy *slots_new(memory *m, const core_engine *setup, pool *p);
/* `ranks` schedulers of one kind, each over its own pool, that run every step together (lockstep.c) */
policy *lockstep_new(memory *m, const core_engine *setup, i64 num_ranks, policy **ranks);
i64 lockstep_rank_requests(const policy *p, i64 *counts);
i64 offloading_tier_use(const policy *p, core_tier_use *uses);
i64 vllm_v0_swap_use(const policy *p, core_tier_use *uses);

/* policy.c: functions that policies share */
void policy_init(policy *p, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool);
i64 policy_unfinished(const policy *p);
i64 policy_num_running(const policy *p);
i64 policy_num_waiting(const policy *p);
i64 policy_last_slot(const policy *p, const sequence *r);
void remove_running(policy *p, const sequence *r); /* it must be there */
i64 running_index(const policy *p, const sequence *r); /* -1: not there */
void insert_loaded(policy *p, sequence *r); /* insert before all requests without blocks */
void leave_windows_now(policy *p, sequence *r, i64 processed_tokens);
/* Free the blocks that no later token attends to; call the pool only if a window has passed another one. */
static inline void leave_windows(policy *p, sequence *r, i64 processed_tokens)
{
    if (processed_tokens >= r->next_leave)
        leave_windows_now(p, r, processed_tokens);
}
static inline row *new_row(memory *m, step *s)
{
    if (s->rows.count == s->rows.room) RESERVE(m, &s->rows, s->rows.count + 1);
    return &s->rows.at[s->rows.count++];
}
extern const shape NO_ROWS; /* copied, because compilers clear this many words with slow instructions */
void empty_step(step *s);
void count_prefill_row(const policy *p, step *s, const row *w);
void note_row(const policy *p, step *s, const row *w);
void emit_alone(const policy *p, step *s, sequence *r);

/* For a row that stays in its step: once, when it is decided. See shapes.py. */
static inline void count_row(const policy *p, step *s, const row *w)
{
    sequence *r = w->sequence;
    shape *sums = &s->sums;
    i64 context = w->computed + w->tokens, window = p->window_tokens;
    r->rows_in_flight++;
    if (!r->scheduled || r->preempted != MISSING)
        note_row(p, s, w);
    if (w->tokens - w->drafts == 1 && w->computed >= r->prompt_tokens) {
        sums->decode_sequences++;
        sums->draft_tokens += w->drafts;
        sums->decode_context_tokens += context;
        sums->decode_window_context_tokens += MIN(context, window);
    } else if (w->tokens) {
        count_prefill_row(p, s, w);
    }
}

static inline void count_rows(const policy *p, step *s)
{
    for (i64 i = 0; i < s->rows.count; i++)
        count_row(p, s, &s->rows.at[i]);
}

/* For every row of a step that ends; 1: its request had ended before. */
static inline int row_ends(const policy *p, step *s, sequence *r)
{
    r->rows_in_flight--;
    if (r->status != FINISHED)
        return 0;
    PUSH(p->memory, &s->gone, r);
    return 1;
}

/* Deliver output tokens of a request when its step ends. */
static inline void emit(const policy *p, step *s, sequence *r)
{
    if (!s->common || r->last_token != s->common_last) {
        emit_alone(p, s, r);
        return;
    }
    s->common++;
    r->last_token = s->end;
}

/* Written in place: a row that is passed on is written twice, and the second write waits for the first. */
#define add_row(m, s, ...) (*new_row((m), (s)) = (__VA_ARGS__))

/* speculation.c: drafts, and how many of them a verification accepts */
typedef struct {
    i64 k, lookahead_slots, num_accept, num_rates, num_classes;
    const i64 *accept;
    const double *rates;
    uint64_t seed;
} speculation;
i64 accepted_drafts(const speculation *s, sequence *r, i64 drafts);
i64 draft_class(const speculation *s, i64 request);
/* 64 well-mixed bits of three numbers. Steele et al., SplitMix64, OOPSLA 2014. */
#define VERIFICATION_DRAW 0x8CB92BA72F3D8DD7u /* increment per verification of a request */
static inline uint64_t mixing(uint64_t a, uint64_t b, uint64_t c)
{
    return a * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u + c * VERIFICATION_DRAW + 0x2545F4914F6CDD1Du;
}
static inline uint64_t mixed_of(uint64_t state)
{
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}
static inline uint64_t mixed(uint64_t a, uint64_t b, uint64_t c) { return mixed_of(mixing(a, b, c)); }
/* Draw the draft at this depth, after the one before it. */
static inline uint64_t mixed_further(uint64_t state, uint64_t depth) { return mixed(state, depth, 0); }

/* gaps.c, work.c: see there */
typedef struct gaps gaps;
gaps *gaps_new(memory *m);
typedef struct work work;
work *work_new(memory *m);
void work_step(work *w, const shape *s, i64 duration_ps, i64 held_ps);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

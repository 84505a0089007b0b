/* Inside the core: sequences, steps, pools and policies. One file a policy, one a pool; names and order of the Python
 * policies, which are the specification. */
#ifndef CAPACITY_INTERNAL_H
#define CAPACITY_INTERNAL_H

#include <setjmp.h>
#include <stddef.h>
#include <string.h>

#include "core.h"
#include "step_times.h"

#ifndef _WIN32 /* what is declared here is not the library's to the outside: calls need no detour */
#pragma GCC visibility push(hidden)
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
static inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; } /* a >= 0 */

/* memory.c: everything that a fleet allocates is freed with it, wherever a call was left. */
typedef struct memory {
    struct block *blocks;
    jmp_buf on_error; /* set by every public function */
    int error;
    char message[256];
} memory;
void *take_memory(memory *m, size_t bytes); /* zeroed; never NULL: leaves the call instead */
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

/* A queue of sequences, open at both ends (queue.c). */
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

/* What a request holds of one run of cached blocks (runs.h): from where the run starts, or the last part stops. */
typedef struct {
    struct run *run;
    i64 stop;
} part;
typedef VEC(part) part_list;

/* The KV blocks of one request, as its pool keeps them. */
typedef struct table {
    i64 request;         /* whose content it is */
    i64 held, cached;    /* run pool: blocks in all, and those with content */
    i64 named;           /* run_pool.c: those of them that are parts of runs */
    i64 loaded;          /* tokens that came from elsewhere; 0: none */
    part_list parts;          /* run_pool.c */
    struct group *groups;     /* block_pool.c: one a group of layers */
    i64 leaves_at;            /* block_pool.c: processed tokens at which a block is left behind */
    i64 accessed, remembered_hit;     /* content_pool.c */
    VEC(i64) blocks;                  /* content_pool.c */
    i64 start;                        /* contiguous_pool.c */
} table;

/* The last look-up in a pool: how many tokens are cached; the rest is the pool's own. */
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
    int (*load)(pool *p, table *t, i64 tokens);         /* 0: the blocks are not free */
    int (*hold_computed)(pool *p, table *t, i64 tokens, const hit *h);
} pool_ops;

struct pool {
    const pool_ops *ops;
    memory *memory;
    const core_contents *contents; /* NULL: nothing is shared */
    i64 num_blocks, block_size, free_blocks;
    int prefix_caching;
};
pool *run_pool_new(memory *m, const core_engine *setup, const core_requests *requests);   /* full attention */
pool *block_pool_new(memory *m, const core_engine *setup, const core_requests *requests); /* windows */
pool *contiguous_pool_new(memory *m, const core_engine *setup);
pool *content_pool_new(memory *m, const core_engine *setup, const core_requests *requests); /* V0's; content_pool.h */

enum { WAITING, RUNNING, FINISHED };

/* What every row looks at comes first, in two lines of the processor's cache. */
struct sequence {
    i64 known, max_known, computed, prompt_tokens;
    i64 in_flight_tokens, in_flight_yields, placeholders, drafts;
    i64 last_token;     /* instant; or MISSING */
    i64 rows_in_flight; /* rows of steps that are not settled yet, and places among those that they preempted */
    i64 epoch;
    i64 preempted;      /* instant, until it runs again; or MISSING */
    int status, scheduled; /* scheduled: its first tokens were */
    i64 room;           /* tokens that its blocks have a place for; 0: ask the pool */
    i64 next_full;      /* tokens at which the next block is full; 0: ask the pool */
    i64 next_leave;     /* processed tokens at which a window leaves the next block; 0: ask the pool */
    i64 asked_known;    /* prompt and the outputs that the client allows, as long as the model allows */
    i64 request, arrival, priority, order;
    i64 engine; /* its number */
    i64 accepted, preemptions;
    const double *rates; /* at which its drafts are accepted; NULL: not looked up yet */
    i64 first_token;   /* instant */
    i64 loaded;        /* tokens that its last load brought from a tier below */
    i64 stored_chunks; /* of its KV, below the GPU */
    i64 rank;
    i64 adapter;       /* LoRA; 0: none */
    i64 known_at_row; /* as its last generation row was decided (batching.c) */
    int cancelled;
    int kept;          /* by its policy, though it has ended */
    int inside;        /* of the engine, counted as one of its requests */
    int growing;       /* its context does not fill the window yet */
    /* vllm_v1.c: place in the running list; decode_group.c: `computed` less the group's clock */
    i64 ticket, offset;
    i64 bucket, place_in_bucket; /* -1: in none */
    i64 chunk_bucket, place_in_chunk_bucket; /* + 1; 0: in none */
    int lags;          /* offload.c: there was no place for a copy of its KV */
    int drafted;       /* drafts.c: one of the group */
    i64 place;         /* vllm_v1.c: in the running list, while that is in no order */
    i64 last_clock;    /* decode_group.c: its last step, and who has his in the same list */
    sequence *next_end;
    sequence *next_free;
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
    VEC(i64) noted;       /* rows that tell the ledger of their requests: the first ones, and those after a preemption */
    /* deliveries that the ledger looks at; those whose last one was at one common instant are only counted */
    sequences emitted;
    i64 common_last, common;
    sequences gone;       /* they had ended before their rows did */
    i64 start, end, held_ps;
    i64 stores;           /* offload.c: copies to make when it ends; -1: none */
    i64 num_parts;        /* lockstep.c: one a rank */
    struct step **parts;
    /* rows that are known by their sums alone: the decode group of vllm_v1.c, and all rows of the parts */
    int grouped;
    i64 group, group_gap_ps;
    sequences ending; /* requests that it completes, in the order of the running list */
    struct step *next_free;
} step;

typedef struct {
    i64 max_num_seqs, max_num_batched_tokens, max_model_len, long_prefill_token_threshold, max_active;
    i64 watermark_blocks, prefill_schedule_interval, pipeline_stages;
    int priority, enable_chunked_prefill, lone_prefill_exempt, reserve_full_isl, self_preempt_continues;
} limits;

typedef struct {
    int (*add)(policy *p, sequence *r); /* 0: turned away */
    void (*add_loaded)(policy *p, sequence *r);
    void (*schedule)(policy *p, step *s, i64 now_ps); /* `s` is empty */
    void (*update)(policy *p, step *s);               /* delivers, and fills s->finished in row order */
    void (*abort)(policy *p, sequence *r);
    i64 (*wake_ps)(const policy *p);                  /* NULL: no decision waits for the clock */
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
    int asynchronous; /* the next step is decided while one runs */
    int aborts, reserves_to_end, can_hold_prompts, holds_prompts;
    i64 window_tokens;  /* clips contexts in step shapes; NEVER: none */
    int streams;        /* deliveries wait in a queue that streams them */
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
/* `ranks` schedulers of one kind, each over a pool of its own, that take every step together (lockstep.c) */
policy *lockstep_new(memory *m, const core_engine *setup, i64 num_ranks, policy **ranks);
i64 lockstep_rank_requests(const policy *p, i64 *counts);
i64 offloading_tier_use(const policy *p, core_tier_use *uses);
i64 vllm_v0_swap_use(const policy *p, core_tier_use *uses);

/* policy.c: what policies share */
void policy_init(policy *p, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool);
i64 policy_unfinished(const policy *p);
i64 policy_num_running(const policy *p);
i64 policy_num_waiting(const policy *p);
i64 policy_last_slot(const policy *p, const sequence *r);
void remove_running(policy *p, const sequence *r); /* it must be there */
i64 running_index(const policy *p, const sequence *r); /* -1: not there */
void insert_loaded(policy *p, sequence *r); /* before all who hold no blocks */
void leave_windows_now(policy *p, sequence *r, i64 processed_tokens);
/* Free the blocks that no later token looks at: asks the pool only where a window has left another one. */
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
extern const shape NO_ROWS; /* copied: compilers clear so many words by slow instructions */
void empty_step(step *s);
void count_prefill_row(const policy *p, step *s, const row *w);
void note_row(const policy *p, step *s, const row *w);
void emit_alone(const policy *p, step *s, sequence *r);

/* Of a row that stays in its step: once, as it is decided. See shapes.py. */
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

/* Of every row of a step that ends; 1: its request had ended before. */
static inline int row_ends(const policy *p, step *s, sequence *r)
{
    r->rows_in_flight--;
    if (r->status != FINISHED)
        return 0;
    PUSH(p->memory, &s->gone, r);
    return 1;
}

/* One delivery of a request's output tokens, as its step ends. */
static inline void emit(const policy *p, step *s, sequence *r)
{
    if (!s->common || r->last_token != s->common_last) {
        emit_alone(p, s, r);
        return;
    }
    s->common++;
    r->last_token = s->end;
}

/* Written where it stays: a row that is handed over is written twice, and the second time waits for the first. */
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
#define VERIFICATION_DRAW 0x8CB92BA72F3D8DD7u /* from one verification of a request to the next */
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
/* What the draft at this depth draws, after the one before it. */
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

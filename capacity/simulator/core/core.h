/* Interface of the compiled engines for Python: plain C without Python headers, called through ctypes. interface.py
 * reads this header and step_times.h.
 *
 * A fleet has all engines of one run. It accepts requests, advances until an instant or an event, and reports its
 * current state. Every engine does the same as its Python counterpart, step by step, and ends with the same ledger to
 * the picosecond. Instants are integer picoseconds; a key orders the actions at one instant: 4 * instant + SETTLE (a
 * step ends), ARRIVE (requests arrive), DECIDE (the next step is decided).
 */
#ifndef CAPACITY_CORE_H
#define CAPACITY_CORE_H

#include <stdint.h>

typedef int64_t i64;
typedef unsigned __int128 u128;

#define MISSING (-1)
#define NEVER ((i64)1 << 62) /* as an instant and as a key: never due */
enum { SETTLE = 0, ARRIVE = 1, DECIDE = 2 };

enum { OK = 0, OUT_OF_MEMORY = 1, BROKEN = 2, BAD_INPUT = 3, CALLBACK_FAILED = 4 };

enum {
    POLICY_VLLM_V1, POLICY_VLLM_V0, POLICY_SGLANG, POLICY_TENSORRT_LLM, POLICY_TGI, POLICY_STATIC, POLICY_SLOTS,
    NUM_POLICIES
};
enum { ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE };
enum { BALANCE_PUBLISHED_QUEUES, BALANCE_ROUND_ROBIN, BALANCE_FEWEST_REQUESTS };

/* The requests, one entry each; NULL columns: all 0, or as noted. */
typedef struct {
    i64 count;
    const i64 *prompt_tokens;
    const i64 *output_tokens; /* generated tokens */
    const i64 *max_tokens;    /* limit of the client, which some engines reserve; NULL: output_tokens */
    const i64 *priority;
    const i64 *adapter;       /* its LoRA adapter; 0: none */
    const i64 *images;        /* at the start of the prompt, followed by its audio clip */
    const i64 *image_tokens;  /* of each image */
    const i64 *audio_tokens;  /* of the clip; 0: none */
    const i64 *order;         /* rank among equals; NULL: the index */
} core_requests;

/* Shared KV blocks of each request for one block size: runs of blocks from the start of the chain. The blocks after
 * them are private. A key identifies a run and everything before it. */
typedef struct {
    const i64 *offsets; /* count + 1 entries into keys and stops; NULL: nothing is shared */
    const i64 *keys;    /* 0 .. num_keys - 1 */
    const i64 *stops;   /* end of each run, in blocks from the start of the chain */
    i64 num_keys;
} core_contents;

/* The ledger's columns, one entry a request, written by the engines. */
typedef struct {
    i64 *arrival_ps, *first_scheduled_ps, *first_token_ps, *finish_ps;
    i64 *output_tokens, *cached_tokens, *preemptions, *preempted_ps;
} core_columns;

/* A tier of KV below the GPU. */
typedef struct {
    i64 capacity_chunks; /* -1: no limit */
    double bytes_per_s;
    i64 latency_ps;
} core_tier;

typedef struct step_times step_times; /* step_times.h */

/* Scheduling rules of an engine's release: see schedulers/rules.py. */
typedef struct {
    i64 self_preempt_continues, caches_accepted_drafts, lone_prefill_exempt, preemption_shifts_index;
    i64 window_waits_for_steps, pads_drafts, pads_cached_starts, starts_without_room, waits_for_stale_output;
    i64 reuses_uncached_first, reuses_uncached_window_first, admits_with_lookahead, empty_steps_fill_queue;
    i64 skipped_keep_place, spent_step_ends;
    i64 budgets_window_outputs, frees_windows_by_128, locks_windows_only, budgets_windows_apart;
    i64 retries_windowed_prompts, reserves_ignored_eos, chunks_past_prefill_limit, admits_with_page, reserves_page;
} core_rules;

/* One engine: the fields of `EngineSetup`. */
typedef struct {
    i64 policy, role, asynchronous;
    /* limits */
    i64 max_num_seqs, max_num_batched_tokens, max_model_len, priority, enable_chunked_prefill;
    i64 long_prefill_token_threshold, watermark_blocks, reserve_full_isl;
    i64 max_num_active_seqs /* 0: max_num_seqs */, prefill_schedule_interval, pipeline_stages;
    i64 max_encoder_tokens; /* image tokens per step and in the cache; 0: no encoder */
    core_rules rules;
    /* KV */
    i64 num_blocks, block_size, prefix_caching;
    i64 num_windows;
    const i64 *windows;   /* one per group of layers; -1: full attention */
    i64 contiguous_blocks; /* contiguous blocks reserved for every request; 0: paged */
    const core_contents *contents;
    i64 answers_private;  /* no prompt can hit an answer that is still being generated */
    /* steps */
    step_times *times;
    i64 window_tokens;    /* clips contexts in step shapes; -1: none */
    /* drafts; none where draft_tokens is 0 */
    i64 draft_tokens, lookahead_slots;
    i64 num_accept;
    const i64 *accept;    /* recorded acceptances, cycled through; else drawn: */
    i64 num_rates, num_classes; /* rates by depth, for each class of requests */
    const double *rates;
    uint64_t draft_seed;
    /* synchronised data-parallel ranks */
    i64 data_parallel_size, balance, prompt_wait_steps;
    /* options of the policies */
    i64 sglang_lpm, sglang_mixed_chunk, sglang_max_prefill_tokens, sglang_ignore_eos, sglang_recv_interval;
    i64 sglang_window;
    double sglang_window_share, sglang_conservativeness;
    i64 trt_max_utilization, trt_batch_wait_steps, trt_prompts_per_step /* 0: no limit */;
    double trt_batch_wait_tokens;
    double tgi_waiting_served_ratio;
    i64 tgi_max_waiting_steps;
    i64 static_window_ps;
    i64 slots_max_waiting; /* -1: any number */
    i64 v0_swap, v0_num_cpu_blocks, v0_swap_block_ps;
    /* KV offload; none where num_tiers is 0 */
    i64 num_tiers, chunk_blocks, offload_synchronous;
    double chunk_bytes;
    core_tier tiers[2];
    /* behind it */
    /* LoRA adapters; none where max_loras is 0 */
    i64 max_loras, max_cpu_loras /* 0: all */, adapter_load_ps, adapter_read_ps;
    /* front end: processes that tokenize prompts, receive requests and send messages; 0, 0, 0 and 1: none */
    double input_token_s;
    i64 num_processes, request_ps, message_ps, stream_interval;
    i64 keep_work, keep_log;
    i64 admits_long_prompts; /* no front end rejects them before the scheduler */
    /* step noise: 4096 equally likely factors, drawn by seed, engine and step; NULL: none */
    const double *step_factors;
    uint64_t step_seed;
    double launch_lag; /* fraction of the time of a prefill step after which the output of the previous step is read */
} core_engine;

/* State of an engine and its running sums. */
typedef struct {
    u128 kv_block_ps, kv_busy_ps; /* first, because ctypes does not align them */
    i64 num_running, num_waiting, kv_used_blocks, unfinished;
    i64 steps, rows, busy_ps, rejected, preemptions, completed;
    i64 kv_peak_blocks, hit_tokens, queried_tokens, lost_tokens;
    i64 now_ps, alive, endless; /* endless: requests preempt each other forever */
    i64 unused; /* C pads the structure to a multiple of 16 bytes for its u128; ctypes does not */
} core_state;

/* Chunks that a tier wrote, evicted, read, holds and refused. */
typedef struct {
    i64 stored, evicted, loaded, held, refused, hit_tokens;
} core_tier_use;

enum {
    EVENT_FINISHED,     /* a request ended; value: 1 if it was dropped without a token */
    EVENT_REFUSED,      /* it was rejected on arrival */
    EVENT_PREFILLED,    /* its KV is kept for the decode engine */
    EVENT_PREFILL_LOST, /* its KV was lost before it could be kept */
    EVENT_LOAD_BEGINS   /* blocks for the KV that it waits for are free: answer with fleet_load_begun */
};
typedef struct {
    i64 kind, engine, request, at_ps, value;
} core_event;

enum { TOLD_IN_TURN = 16 };
typedef struct {
    i64 limit_key, stop_at, max_steps;          /* arguments of fleet_advance */
    i64 load_engine, load_request, load_end_ps; /* done first, arguments of fleet_load_begun; engine MISSING: none */
    i64 next_key;                               /* next due key */
    core_event told[TOLD_IN_TURN];
} core_turn;

typedef struct fleet fleet;

/* Create a fleet for these requests. `routed`: events are kept for the router of the engines. */
fleet *fleet_new(const core_requests *requests, const core_columns *columns, i64 routed);
void fleet_free(fleet *f);
const char *fleet_error(const fleet *f); /* of the last call that failed */
int fleet_failed(const fleet *f);        /* the number of that error; OK: none */

/* Add an empty engine from an instant on; return its number, or -1. */
i64 fleet_add(fleet *f, const core_engine *setup, i64 now_ps);

/* Add arrivals, in order of their instants. The caller keeps both arrays. */
i64 fleet_feed(fleet *f, i64 engine, i64 count, const i64 *requests, const i64 *instants);
/* Add a closed loop of all requests: `in_flight` of them at `first_ps`, and the next one `delay_ps` after each end. The
 * caller keeps `instants`, which has room for all of them. */
i64 fleet_feed_loop(fleet *f, i64 engine, i64 in_flight, i64 first_ps, i64 delay_ps, i64 *instants);
/* Deliver one request to an engine now. Returns 1: accepted, 0: rejected (without an event), -1: error. */
i64 fleet_deliver(fleet *f, i64 engine, i64 request, i64 at_ps);

/* Process everything due before `limit_key`. Return after the first instant with an event of the kinds in the bits of
 * `stop_at`. Returns OK or an error. `left_steps` limits the work of one call; the next call continues. */
i64 fleet_advance(fleet *f, i64 limit_key, i64 stop_at, i64 max_steps);
i64 fleet_next_key(const fleet *f);
/* The same for frequent callers, which keep the turn, because an argument costs Python more than a number in memory.
 * Returns the number of events (the turn has the first ones), or minus the error. */
void fleet_keep_turn(fleet *f, core_turn *turn);
i64 fleet_take_turn(fleet *f);
i64 fleet_completed(const fleet *f); /* requests completed by all engines */
i64 fleet_events(fleet *f, const core_event **events); /* since the last call; valid until the next call */

void fleet_state(const fleet *f, i64 engine, core_state *state);
i64 fleet_rank_requests(const fleet *f, i64 engine, i64 *counts);
i64 fleet_tier_use(const fleet *f, i64 engine, core_tier_use *uses);
i64 fleet_log(const fleet *f, i64 engine, const i64 **log); /* entries; see log.c */

/* Gaps of all engines. Pointers are valid until the next gap is added. */
typedef struct {
    i64 count;
    uint64_t total_low, total_high; /* of the sum of all gaps: 128 bits */
    i64 num_gaps;
    const i64 *gaps;                /* pairs of a gap and its count, in ascending order; empty where that is 0 */
    const i64 *bins;                /* NUM_BINS; NULL: the gaps are exact */
    i64 batch_size;
    const i64 *const *octaves;      /* NUM_OCTAVES pointers to MOST_BATCHES rows of bins; NULL: the octave has no gaps */
} gaps_arrays;

struct gaps;
const struct gaps *fleet_gaps(const fleet *f);
void gaps_export(struct gaps *g, gaps_arrays *out);

/* Data of work.c. Pointers are valid until the next step. */
typedef struct {
    i64 held_ps, num_kinds, num_prefills, stride, prefill_steps, prefill_ps;
    const void *kinds;    /* decode_kind of work.h, in order of first occurrence */
    const void *prefills; /* prefill_sample of work.h */
} work_arrays;

struct work;
const struct work *fleet_work(const fleet *f, i64 engine); /* NULL without keep_work */
void work_export(const struct work *w, work_arrays *out);

/* Take effect at the engine's next decision. */
i64 fleet_cancel(fleet *f, i64 engine, i64 request, i64 at_ps);
i64 fleet_release_kept(fleet *f, i64 engine, i64 request, i64 at_ps);
i64 fleet_want_load(fleet *f, i64 engine, i64 request, i64 tokens, i64 at_ps);
i64 fleet_load_begun(fleet *f, i64 engine, i64 request, i64 end_ps); /* at once: the engine waits in its decision */
i64 fleet_loaded(fleet *f, i64 engine, i64 request, i64 at_ps);
i64 fleet_unload(fleet *f, i64 engine, i64 request, i64 at_ps);
void fleet_stop(fleet *f, i64 engine);

#endif

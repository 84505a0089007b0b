/* Step times: the step model as data. Python (capacity.step) fills it, and C evaluates it in the same order of
 * operations with one rounding to integer picoseconds, so that every time equals Python's. */
#ifndef CAPACITY_STEP_TIMES_H
#define CAPACITY_STEP_TIMES_H

#include "core.h"

/* The fields of capacity.step.StepShape, in order. */
typedef struct {
    i64 prefill_sequences, prefill_tokens, prefill_pairs, prefill_context_tokens;
    i64 prefill_window_pairs, prefill_window_context_tokens, prompts_completed;
    i64 decode_sequences, draft_tokens, decode_context_tokens, decode_window_context_tokens;
    i64 encoder_tokens, encoder_pairs, audio_tokens, audio_pairs; /* steps with these are timed by Python */
} shape;

/* The straight line of decode steps of one size, up to its limits (inclusive; NEVER: none). */
typedef struct {
    i64 base_ps, context_ps, window_context_ps, max_context_tokens, max_window_context_tokens;
} decode_line;

i64 step_ps(step_times *t, const shape *s);                       /* at least 1; -1: the callback failed */
i64 joint_ps(step_times *t, const shape *shapes, i64 count);      /* of data-parallel ranks, together */
int decode_piece(step_times *t, const shape *s, decode_line *out); /* 0: no line, use each step's own time */

/* The line that `step_ps` itself uses for decode steps of this size; 0: use each step's own time. */
int step_line(step_times *t, const shape *s, decode_line *out);

/* The rest is the interface between capacity.simulator.core.step_data, which fills it, and step_times.c. */

/* One operator of a step: capacity.step.export.OperatorData. The last kinds depend on one number of rows. */
enum {
    GROUPED_PREFILL, GROUPED_DECODE, LATENT_PREFILL, LATENT_DECODE, SPARSE_INDEXER, RECURRENCE,
    SPARSE_PREFILL, EXPANSION,
    PRODUCT, TRAFFIC, ALL_REDUCE, COLLECTIVE, EXPERTS
};
typedef struct {
    i64 kind, windowed, top_k /* -1: all tokens */, fills, short_dense, local_routing;
    double count, compute_rate, memory_rate, sharpness, fixed_s;
    /* attention */
    double heads, flops_per_pair, context_bytes, row_bytes;
    double occupancy_s, sm_count, per_doubling_s, per_token_s;
    /* a product */
    double n, k, weight_bytes, quantize_bytes, quantize_rate /* 0: nothing is quantized */, walk_s;
    double from_rows, below_rows; /* other numbers of rows use another kernel */
    /* collectives; one_shot_rate 0: NCCL's */
    double ranks, latency_s, one_shot_rate, one_shot_fixed_s, per_rank_s;
    /* experts */
    double token_groups, experts_per_token, num_experts, matrices, hidden, intermediate;
    double weight_bits, value_bytes, routed_rate, tile_rows, crowding, evenness, tilt, tilted_least;
} step_operator;

enum { STEPS_ASKED, STEPS_AFFINE, STEPS_MODEL, STEPS_SCALED, STEPS_DELAYED, STEPS_SLOWEST, STEPS_DRAFTED };
enum { ROW_SECONDS, SAMPLE_SECONDS, SHARED_SECONDS, DRAFT_SECONDS, NUM_TABLES };

/* Source of step times. The pointers must live as long as the step times. */
typedef struct {
    i64 kind;
    /* Calls to Python for everything without data; -1 and NaN: it raised. */
    i64 (*ask_step)(const shape *s);
    i64 (*ask_joint)(const shape *shapes, i64 count);
    i64 (*ask_piece)(const shape *s, decode_line *out); /* NULL: there are no lines */
    double (*ask_seconds)(i64 table, i64 rows);         /* an entry of a model's tables */
    /* STEPS_AFFINE */
    i64 base_ps, row_ps, context_ps;
    /* STEPS_MODEL */
    double host_step_s, host_sequence_s, overlap_sharpness, eager_s, waiting_s, host_serial_s, host_serial_sequence_s;
    i64 overlapped, graphs_for_prefill;
    i64 num_graph_rows;    /* entry r: rows of the CUDA graph that r rows replay */
    const i64 *graph_rows;
    i64 ranks, has_shared; /* SHARED_SECONDS uses the rows of all ranks together */
    i64 num_operators;     /* operators by contexts, followed by those of each table */
    i64 first_operator[NUM_TABLES], end_operator[NUM_TABLES]; /* -1: Python computes its entries */
    const step_operator *operators;
    /* modified step times of another source */
    step_times *inner;
    double prefill_factor, decode_factor; /* STEPS_SCALED */
    i64 added_ps;                         /* STEPS_DELAYED */
    /* STEPS_DRAFTED */
    step_times *draft;                    /* a STEPS_MODEL; NULL: DRAFT_SECONDS by decode rows */
    i64 draft_window_tokens, draft_steps; /* window -1: none */
    double first_drafts, level_drafts;    /* rows in addition to each decode row */
} step_source;

step_times *step_times_new(const step_source *source); /* NULL: no memory */
void step_times_free(step_times *t);
i64 step_times_failed(const step_times *t); /* a callback raised: every time is -1 until step_times_forgive */
void step_times_forgive(step_times *t);
/* Times of many shapes, one by one or by their lines if there are any: for tests and measurements. */
void step_times_many(step_times *t, const shape *shapes, i64 count, i64 by_line, i64 *out_ps);
double step_times_pow(double base, double exponent);
double step_times_log2(double value);

#endif

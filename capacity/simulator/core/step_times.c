/* Durations of steps as in capacity.step.model: the same operations in the same order, with one rounding.
 *
 * Python handles the cases in which its floats and integers would differ (extremely large sums of contexts), and
 * everything that has no data here. The functions have the names of capacity.step.model and of
 * capacity.step.operators. Step times outlive fleets, so they have their own memory.
 */
#include "step_times.h"

#include "norms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define SPLIT_TOKENS 64.0
#define ACTIVATION_BYTES 2.0
#define MIDDLE_TOKENS 32.0
#define TILTED_TOKENS 4096.0
#define PS_PER_S 1e12
#define KNOT_BITS 4
#define MOST_INTEGER ((i64)1 << 53)  /* integers below it are exact as floats, so quotients are equal */
#define MOST_CONTEXT ((i64)1 << 40)
#define MOST_ENTRIES ((i64)1 << 22)  /* entries of a table; beyond, Python is called each time */
#define MOST_SIZES ((i64)1 << 16)    /* numbers of decode rows whose last line is cached */
#define RECENT_LINES 8 /* cached lines of each; a power of two */
#define MOST_LINES ((i64)1 << 20)    /* then all are dropped */
#define DRAFTING_BITS 16
#define SIZE_STRIDE 4099             /* distance between batches of one size and the next */
#define AT_LEAST_1(ps) ((ps) < 1 ? 1 : (ps))

/* For a model: by operator, and the host's part beyond the GPU's. */
typedef struct {
    exponent overlap;
    exponent *of; /* each operator */
} exponents;

typedef struct {
    double *at; /* NaN: not computed yet */
    i64 count;
} table_of_seconds;

/* A line, or the values that STEPS_SCALED keeps for steps without one, between two knots. */
typedef struct {
    i64 used, decode_sequences, draft_tokens, low, window_low;
    decode_line line;
    double first_ps, slope_ps;
} knotted;

/* A line with its lookup key, in one cache line. */
typedef struct {
    int32_t decode_sequences, draft_tokens; /* 0 sequences: none */
    i64 low, window_low;
    decode_line line;
} recent_line;

/* Drafting time of a batch of one size and mean context; others with the same index replace it. */
typedef struct {
    i64 batch; /* size and mean context; 0: empty */
    double seconds;
} drafting;

struct step_times {
    step_source source;
    exponents exact, quick; /* quick operators that depend on contexts; the others are in tables */
    i64 num_exponents;
    table_of_seconds tables[NUM_TABLES];
    knotted *lines; /* by hash; room is a power of two */
    i64 num_lines, room;
    recent_line *recent; /* by decode_sequences, and by the last digit of the knot */
    void *recent_memory;
    i64 num_recent;
    drafting *drafted; /* successive contexts are adjacent in memory; NULL: none yet */
    int failed;
};

/* Python was called */

static i64 answer(step_times *t, i64 ps)
{
    if (ps < 0) t->failed = 1;
    return t->failed ? -1 : ps;
}

static i64 ask_step(step_times *t, const shape *s)
{
    return t->failed ? -1 : answer(t, t->source.ask_step(s));
}

static i64 ask_joint(step_times *t, const shape *shapes, i64 count)
{
    return t->failed ? -1 : answer(t, t->source.ask_joint(shapes, count));
}

static int ask_piece(step_times *t, const shape *s, decode_line *out)
{
    if (t->failed || !t->source.ask_piece) return 0;
    i64 found = t->source.ask_piece(s, out);
    if (found < 0) t->failed = 1;
    return found > 0;
}

/* forms */

/* Integer picoseconds, half to even; 0 if there are too many for an integer. */
static int rounded(double ps, i64 *out)
{
    if (!(fabs(ps) < 4e18)) return 0;
    *out = (i64)nearest(ps);
    return 1;
}

/* Whether floats and integers give Python's results for all sums of a shape. */
static int in_reason(const shape *s)
{
    uint64_t sums = (uint64_t)(s->prefill_sequences | s->prefill_pairs | s->prefill_window_pairs);
    uint64_t contexts = (uint64_t)(s->prefill_tokens | s->prefill_context_tokens
                                   | s->prefill_window_context_tokens | s->prompts_completed
                                   | s->decode_sequences | s->draft_tokens | s->decode_context_tokens
                                   | s->decode_window_context_tokens);
    return sums < (uint64_t)MOST_INTEGER && contexts < (uint64_t)MOST_CONTEXT;
}

/* operators */

/* FLOPs, bytes, rows of KV heads and the mean context of decode rows, of one layer. */
typedef struct {
    double flops, moved, rows, context;
} work;

static work grouped_prefill(const step_operator *o, const shape *s)
{
    i64 pairs = o->windowed ? s->prefill_window_pairs : s->prefill_pairs;
    i64 context = o->windowed ? s->prefill_window_context_tokens : s->prefill_context_tokens;
    double moved = (double)context * o->context_bytes + (double)s->prefill_tokens * o->row_bytes;
    return (work){(double)pairs * o->flops_per_pair, moved, (double)s->prefill_sequences * o->heads, 0.0};
}

static work grouped_decode(const step_operator *o, const shape *s)
{
    if (s->decode_sequences <= 0) return (work){0.0, 0.0, 0.0, 0.0};
    double context = (double)(o->windowed ? s->decode_window_context_tokens : s->decode_context_tokens);
    double sequences = (double)s->decode_sequences;
    double queries = 1.0 + (double)s->draft_tokens / sequences;
    double rows = (double)(s->decode_sequences + s->draft_tokens);
    double moved = context * o->context_bytes + rows * o->row_bytes;
    return (work){context * queries * o->flops_per_pair, moved, sequences * o->heads, context / sequences};
}

/* Sparse attention handles prompts longer than its top-k differently, or all of them. */
static int gathers(const step_operator *o, const shape *s)
{
    return !o->short_dense || (double)s->prefill_context_tokens > (double)s->prefill_sequences * (double)o->top_k;
}

static work latent_prefill(const step_operator *o, const shape *s)
{
    if (o->top_k >= 0 && gathers(o, s)) return (work){0.0, 0.0, 0.0, 0.0};
    double pairs = (double)s->prefill_pairs, context = (double)s->prefill_context_tokens;
    double moved = context * o->context_bytes + (double)s->prefill_tokens * o->row_bytes;
    return (work){pairs * o->flops_per_pair, moved, (double)s->prefill_sequences, 0.0};
}

static work sparse_prefill(const step_operator *o, const shape *s)
{
    if (s->prefill_tokens <= 0 || !gathers(o, s)) return (work){0.0, 0.0, 0.0, 0.0};
    double tokens = (double)s->prefill_tokens, pairs = (double)s->prefill_pairs;
    double most = tokens * (double)o->top_k;
    if (most < pairs) pairs = most;
    double moved = pairs * o->context_bytes + tokens * o->row_bytes;
    return (work){(o->fills ? most : pairs) * o->flops_per_pair, moved, tokens, pairs / tokens};
}

static work latent_decode(const step_operator *o, const shape *s)
{
    if (s->decode_sequences <= 0) return (work){0.0, 0.0, 0.0, 0.0};
    double context = (double)s->decode_context_tokens, sequences = (double)s->decode_sequences;
    double queries = (double)(s->decode_sequences + s->draft_tokens);
    if (o->top_k >= 0) {
        double most = sequences * (double)o->top_k;
        if (most < context) context = most;
    } else if (context * queries >= (double)MOST_INTEGER) {
        return (work){NAN, NAN, 1.0, NAN}; /* Python multiplies integers here, so leave it to Python */
    }
    double slots = o->fills ? sequences * (double)o->top_k : context;
    double flops = slots * queries / sequences * o->flops_per_pair;
    return (work){flops, context * o->context_bytes + queries * o->row_bytes, queries, context / sequences};
}

static work sparse_indexer(const step_operator *o, const shape *s)
{
    double drafts = s->decode_sequences ? (double)s->draft_tokens / (double)s->decode_sequences : 0.0;
    double pairs = (double)s->prefill_pairs + (double)s->decode_context_tokens * (1.0 + drafts);
    double moved = (double)(s->prefill_context_tokens + s->decode_context_tokens) * o->context_bytes;
    double rows = (double)(s->prefill_sequences + s->decode_sequences);
    return (work){pairs * o->flops_per_pair, moved, rows, 0.0};
}

static work recurrence(const step_operator *o, const shape *s)
{
    double tokens = (double)(s->prefill_tokens + s->decode_sequences + s->draft_tokens);
    double sequences = (double)(s->prefill_sequences + s->decode_sequences);
    double moved = tokens * o->row_bytes + sequences * o->context_bytes;
    return (work){tokens * o->flops_per_pair, moved, sequences, 0.0};
}

static double attention_seconds(const step_operator *o, const exponent *p, work w)
{
    if (w.rows <= 0.0) return 0.0;
    double seconds = norm(w.flops / o->compute_rate, w.moved / o->memory_rate, p);
    if (o->occupancy_s != 0.0)
        seconds = norm(seconds, o->occupancy_s * w.rows / o->sm_count, p);
    if (o->per_token_s != 0.0) seconds = norm(seconds, o->per_token_s * w.context, p);
    if (o->per_doubling_s != 0.0) seconds += o->per_doubling_s * log2(1.0 + w.context / SPLIT_TOKENS);
    return o->count * (seconds + o->fixed_s);
}

/* Rows of MLA's expansion of the latent: the whole context of a prefill, and the rows of a decode. */
static double expanded_tokens(const shape *s)
{
    return (double)(s->prefill_context_tokens + s->decode_sequences + s->draft_tokens);
}

static double gemm_seconds(const step_operator *o, const exponent *p, double m)
{
    if (m <= 0.0 || m < o->from_rows || m >= o->below_rows) return 0.0;
    double moved = o->weight_bytes + m * o->row_bytes;
    double seconds = norm(2.0 * m * o->n * o->k / o->compute_rate, moved / o->memory_rate, p);
    if (o->quantize_rate != 0.0) seconds += m * o->k * o->quantize_bytes / o->quantize_rate;
    return o->count * (seconds + o->fixed_s + o->walk_s);
}

static double traffic_seconds(const step_operator *o, double rows)
{
    return rows <= 0.0 ? 0.0 : o->row_bytes * rows / o->memory_rate + o->fixed_s;
}

static double all_reduce_seconds(const step_operator *o, const exponent *p, double rows)
{
    double message = rows * o->row_bytes;
    double ring = 2.0 * message * (o->ranks - 1.0) / o->ranks;
    double two_shot = norm(o->fixed_s, ring / o->memory_rate, p);
    if (o->one_shot_rate == 0.0) return o->count * (o->latency_s + two_shot);
    double one_shot = o->one_shot_fixed_s + message * (o->ranks - 1.0) / o->one_shot_rate;
    if (rows < o->from_rows) return o->count * (o->per_rank_s + one_shot);
    return o->count * (o->per_rank_s + MIN(one_shot, two_shot));
}

static double collective_seconds(const step_operator *o, const exponent *p, double rows)
{
    double sent = o->row_bytes * rows;
    if (sent <= 0.0) return 0.0;
    return o->count * (o->latency_s + norm(o->fixed_s, sent / o->memory_rate, p));
}

static double busiest_share(const step_operator *o, double total, double variance)
{
    if (o->ranks <= 1.0) return total;
    double busiest = total / o->ranks + sqrt(o->crowding * variance);
    return MIN(total, busiest);
}

/* Negative binomial: random routing, and experts of different popularity. */
static double busiest_pairs(const step_operator *o, double pairs, double held)
{
    double mean = pairs / o->ranks;
    return busiest_share(o, pairs, mean + mean * mean / (held * o->evenness));
}

/* Binomial: a rank's experts are touched or not. */
static double busiest_touched(const step_operator *o, double touched, double held)
{
    double mean = touched / o->ranks, free = 1.0 - mean / held;
    double busiest = busiest_share(o, touched, mean * (free > 0.0 ? free : 0.0));
    return MIN(busiest, held);
}

static double distinct_experts(const step_operator *o, double tokens)
{
    double share = MIN(1.0, o->experts_per_token / o->num_experts);
    if (tokens <= 1.0) return o->num_experts * share * tokens;
    double spread = 1.0 + (tokens - 1.0) * share / o->evenness;
    return o->num_experts * (1.0 - (1.0 - share) * pow(spread, -o->evenness));
}

static double experts_seconds(const step_operator *o, const exponent *p, double tokens)
{
    tokens *= o->token_groups;
    double held = o->num_experts / o->ranks;
    double pairs = busiest_pairs(o, tokens * o->experts_per_token, held);
    double touched = busiest_touched(o, distinct_experts(o, tokens), held);
    double matrix = o->hidden * o->intermediate;
    double rows = pairs, routed_rows = o->local_routing ? pairs : tokens * o->experts_per_token;
    if (o->tile_rows > 1.0) rows = routed_rows = tokens * o->experts_per_token + held * (o->tile_rows - 1.0);
    double flops = 2.0 * rows * o->matrices * matrix;
    double moved = touched * o->matrices * matrix * o->weight_bits / 8.0 + pairs * o->hidden * o->value_bytes
                   + pairs * o->intermediate * o->matrices * ACTIVATION_BYTES;
    double routed = routed_rows * o->hidden * ACTIVATION_BYTES;
    double seconds = norm(flops / o->compute_rate, moved / o->memory_rate, p);
    seconds = seconds + routed / o->routed_rate + o->fixed_s;
    if (o->tilt != 0.0) {
        double capped = MIN(tokens > 1.0 ? tokens : 1.0, TILTED_TOKENS);
        double tilted = exp(o->tilt * log(capped / MIDDLE_TOKENS));
        seconds *= tilted > o->tilted_least ? tilted : o->tilted_least;
    }
    return o->count * seconds;
}

/* Operators that depend on one number of rows. */
static double row_operator_seconds(const step_operator *o, const exponent *p, double rows)
{
    switch (o->kind) {
    case PRODUCT: return gemm_seconds(o, p, rows);
    case TRAFFIC: return traffic_seconds(o, rows);
    case ALL_REDUCE: return all_reduce_seconds(o, p, rows);
    case COLLECTIVE: return collective_seconds(o, p, rows);
    default: return experts_seconds(o, p, rows);
    }
}

static double operator_seconds(const step_operator *o, const exponent *p, const shape *s)
{
    switch (o->kind) {
    case GROUPED_PREFILL: return attention_seconds(o, p, grouped_prefill(o, s));
    case GROUPED_DECODE: return attention_seconds(o, p, grouped_decode(o, s));
    case LATENT_PREFILL: return attention_seconds(o, p, latent_prefill(o, s));
    case LATENT_DECODE: return attention_seconds(o, p, latent_decode(o, s));
    case SPARSE_INDEXER: return attention_seconds(o, p, sparse_indexer(o, s));
    case SPARSE_PREFILL: return attention_seconds(o, p, sparse_prefill(o, s));
    case RECURRENCE: return attention_seconds(o, p, recurrence(o, s));
    default: return gemm_seconds(o, p, expanded_tokens(s)); /* EXPANSION */
    }
}

/* tables */

/* Computed from the operators if they are known and the integers small, else by Python. */
static double new_seconds(step_times *t, i64 table, i64 rows)
{
    i64 first = t->source.first_operator[table], end = t->source.end_operator[table];
    if (t->failed) return NAN;
    if (first >= 0 && rows < MOST_ENTRIES) {
        double number = (double)rows, total = 0.0;
        if (table == SHARED_SECONDS) number /= (double)t->source.ranks;
        for (i64 i = first; i < end; i++)
            total += row_operator_seconds(&t->source.operators[i], &t->exact.of[i], number);
        return total;
    }
    double seconds = t->source.ask_seconds(table, rows);
    if (isnan(seconds)) t->failed = 1;
    return seconds;
}

static double table_seconds(step_times *t, i64 table, i64 rows)
{
    table_of_seconds *seconds = &t->tables[table];
    if (rows >= MOST_ENTRIES) return new_seconds(t, table, rows);
    if (rows >= seconds->count) {
        i64 count = seconds->count ? seconds->count : 256;
        while (count <= rows) count *= 2;
        double *larger = realloc(seconds->at, (size_t)count * sizeof *larger);
        if (!larger) return new_seconds(t, table, rows);
        for (i64 i = seconds->count; i < count; i++) larger[i] = NAN;
        seconds->at = larger;
        seconds->count = count;
    }
    if (isnan(seconds->at[rows])) seconds->at[rows] = new_seconds(t, table, rows);
    return seconds->at[rows];
}

/* the step model */

/* Rows of the CUDA graph that a step replays; -1 if it runs eagerly. */
static i64 graph_rows(const step_times *t, i64 prefill_tokens, i64 rows)
{
    if (rows >= t->source.num_graph_rows || (prefill_tokens && !t->source.graphs_for_prefill)) return -1;
    return t->source.graph_rows[rows];
}

static double own_seconds(step_times *t, const exponents *x, const shape *s, i64 rows)
{
    i64 samples = s->prompts_completed + s->decode_sequences + s->draft_tokens;
    double gpu = table_seconds(t, ROW_SECONDS, rows) + table_seconds(t, SAMPLE_SECONDS, samples);
    for (i64 i = 0; i < t->source.num_operators; i++)
        gpu += operator_seconds(&t->source.operators[i], &x->of[i], s);
    return gpu;
}

static double with_host(const step_times *t, const exponents *x, double gpu, i64 sequences, int replayed)
{
    const step_source *source = &t->source;
    double eager = replayed ? 0.0 : source->eager_s;
    double launch = eager != 0.0 ? norm(gpu, eager, &x->overlap) - gpu : 0.0;
    double waiting = replayed ? 0.0 : source->waiting_s;
    double host = source->host_step_s + source->host_sequence_s * (double)sequences;
    if (source->overlapped) host = norm(gpu, eager + host, &x->overlap) - gpu - launch;
    return gpu + (launch + waiting) + (host + (source->host_serial_s + source->host_serial_sequence_s * (double)sequences));
}

static double step_seconds(step_times *t, const exponents *x, const shape *s)
{
    i64 rows = s->prefill_tokens + s->decode_sequences + s->draft_tokens;
    if (rows <= 0) return 0.0;
    i64 padded = graph_rows(t, s->prefill_tokens, rows);
    i64 computed = padded > 0 ? padded : rows;
    double gpu = own_seconds(t, x, s, computed);
    if (t->source.has_shared) gpu += table_seconds(t, SHARED_SECONDS, computed * t->source.ranks);
    return with_host(t, x, gpu, s->prefill_sequences + s->decode_sequences, padded >= 0);
}

/* A joint step of data-parallel ranks. */
static double joint_seconds(step_times *t, const exponents *x, const shape *shapes, i64 count)
{
    i64 fullest = 0, prefill_tokens = 0, sequences = 0;
    for (i64 i = 0; i < count; i++) {
        const shape *s = &shapes[i];
        i64 rows = s->prefill_tokens + s->decode_sequences + s->draft_tokens;
        if (rows > fullest) fullest = rows;
        if (s->prefill_sequences + s->decode_sequences > sequences)
            sequences = s->prefill_sequences + s->decode_sequences;
        prefill_tokens += s->prefill_tokens;
    }
    if (!fullest) return 0.0;
    i64 padded = graph_rows(t, prefill_tokens, fullest), total = 0;
    double gpu = 0.0;
    int found = 0;
    for (i64 i = 0; i < count; i++) {
        const shape *s = &shapes[i];
        i64 rows = s->prefill_tokens + s->decode_sequences + s->draft_tokens;
        i64 computed = padded > 0 ? padded : rows ? rows : 1;
        total += computed;
        if (!rows) continue;
        double own = own_seconds(t, x, s, computed);
        if (isnan(own)) return own;
        if (!found || own > gpu) gpu = own;
        found = 1;
    }
    if (t->source.has_shared) gpu += table_seconds(t, SHARED_SECONDS, total);
    return with_host(t, x, gpu, sequences, padded >= 0);
}

/* lines between knots */

/* The knot at or below `tokens`, and the distance to the next: an octave has 2**(KNOT_BITS - 1). */
static i64 knot(i64 tokens, i64 *width)
{
    int bits = tokens ? 64 - __builtin_clzll((unsigned long long)tokens) - KNOT_BITS : 0;
    if (bits < 0) bits = 0;
    *width = (i64)1 << bits;
    return tokens >> bits << bits;
}

static uint64_t mixed(uint64_t hash, i64 value)
{
    hash = (hash ^ (uint64_t)value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* The entry of a key, new where `used` is 0; NULL: no memory. */
static knotted *entry_of(step_times *t, const shape *s, i64 low, i64 window_low)
{
    if (t->num_lines * 2 >= t->room) {
        i64 room = t->room ? t->room * 2 : 256;
        if (t->num_lines >= MOST_LINES) room = t->room;
        knotted *lines = calloc((size_t)room, sizeof *lines), *old = t->lines;
        if (!lines) return NULL;
        i64 old_room = t->num_lines >= MOST_LINES ? 0 : t->room;
        t->lines = lines;
        t->room = room;
        t->num_lines = 0;
        for (i64 i = 0; i < old_room; i++) {
            if (!old[i].used) continue;
            shape key = {.decode_sequences = old[i].decode_sequences, .draft_tokens = old[i].draft_tokens};
            knotted *entry = entry_of(t, &key, old[i].low, old[i].window_low);
            *entry = old[i];
            t->num_lines++;
        }
        free(old);
    }
    uint64_t hash = mixed(mixed(mixed(mixed(0, s->decode_sequences), s->draft_tokens), low), window_low);
    for (;; hash++) {
        knotted *entry = &t->lines[hash & (uint64_t)(t->room - 1)];
        if (!entry->used) {
            entry->decode_sequences = s->decode_sequences;
            entry->draft_tokens = s->draft_tokens;
            entry->low = low;
            entry->window_low = window_low;
            return entry;
        }
        if (entry->decode_sequences == s->decode_sequences && entry->draft_tokens == s->draft_tokens
            && entry->low == low && entry->window_low == window_low)
            return entry;
    }
}

static double seconds_at(step_times *t, const shape *s, i64 context, i64 window)
{
    shape at = {.decode_sequences = s->decode_sequences, .draft_tokens = s->draft_tokens,
                .decode_context_tokens = context, .decode_window_context_tokens = window};
    return step_seconds(t, &t->exact, &at);
}

/* 0: not in integers, or a callback failed. */
static int new_line(step_times *t, const shape *s, const i64 knots[4], decode_line *out)
{
    i64 low = knots[0], width = knots[1], window_low = knots[2], window_width = knots[3];
    i64 base, slope, window_slope;
    double first = seconds_at(t, s, low, window_low);
    double rise = (seconds_at(t, s, low + width, window_low) - first) / (double)width;
    double window_rise = (seconds_at(t, s, low, window_low + window_width) - first) / (double)window_width;
    if (!rounded(first * PS_PER_S, &base) || !rounded(rise * PS_PER_S, &slope)
        || !rounded(window_rise * PS_PER_S, &window_slope))
        return 0;
    i64 farthest, window_farthest;
    if (__builtin_mul_overflow(slope, 4 * (low + width), &farthest)
        || __builtin_mul_overflow(window_slope, 4 * (window_low + window_width), &window_farthest))
        return 0;
    *out = (decode_line){AT_LEAST_1(base) - slope * low - window_slope * window_low, slope, window_slope,
                         low + width - 1, window_low + window_width - 1};
    return 1;
}

/* Index of a recently used line for the step. */
static inline uint64_t recent_place(i64 size, i64 context)
{
    int bits = 64 - __builtin_clzll((unsigned long long)context | 1) - KNOT_BITS;
    uint64_t number = (uint64_t)context >> (bits < 0 ? 0 : bits);
    return (uint64_t)size * RECENT_LINES + (number & (RECENT_LINES - 1));
}

/* Return a recently used line of steps with as many decode rows, if this step lies on it too. */
static inline const decode_line *last_line(const step_times *t, const shape *s)
{
    i64 context = s->decode_context_tokens, window = s->decode_window_context_tokens;
    uint64_t place = recent_place(s->decode_sequences, context);
    if (place >= (uint64_t)t->num_recent) return NULL;
    const recent_line *last = &t->recent[place];
    int on_it = last->decode_sequences == s->decode_sequences && last->draft_tokens == s->draft_tokens
                && context >= last->low && context <= last->line.max_context_tokens && window >= last->window_low
                && window <= last->line.max_window_context_tokens;
    return on_it ? &last->line : NULL;
}

/* Memory for steps with this many decode rows; 0: no memory. */
static int make_recent(step_times *t, i64 size)
{
    i64 count = t->num_recent ? t->num_recent : 64 * RECENT_LINES;
    while (count <= size * RECENT_LINES) count *= 2;
    char *memory = calloc((size_t)count + 1, sizeof *t->recent);
    if (!memory) return 0;
    recent_line *larger = (recent_line *)(void *)(memory + (64 - (uintptr_t)memory % 64) % 64);
    if (t->num_recent) memcpy(larger, t->recent, (size_t)t->num_recent * sizeof *larger);
    free(t->recent_memory);
    t->recent_memory = memory;
    t->recent = larger;
    t->num_recent = count;
    return 1;
}

static void remember(step_times *t, const knotted *entry, i64 context)
{
    i64 size = entry->decode_sequences;
    if (size >= MOST_SIZES || entry->draft_tokens > INT32_MAX) return;
    if (size * RECENT_LINES >= t->num_recent && !make_recent(t, size)) return;
    t->recent[recent_place(size, context)] = (recent_line){
        (int32_t)size, (int32_t)entry->draft_tokens, entry->low, entry->window_low, entry->line};
}

/* The model's line for a decode step. 0: there is none in integers, or a callback failed. */
static int find_line(step_times *t, const shape *s, decode_line *out)
{
    if (!in_reason(s)) return 0;
    i64 knots[4];
    knots[0] = knot(s->decode_context_tokens, &knots[1]);
    knots[2] = knot(s->decode_window_context_tokens, &knots[3]);
    knotted *entry = entry_of(t, s, knots[0], knots[2]);
    if (!entry) return new_line(t, s, knots, out);
    if (!entry->used) {
        if (!new_line(t, s, knots, &entry->line)) return 0;
        entry->used = 1;
        t->num_lines++;
    }
    remember(t, entry, s->decode_context_tokens);
    *out = entry->line;
    return 1;
}

static i64 on_line(const decode_line *line, const shape *s)
{
    return line->base_ps + line->context_ps * s->decode_context_tokens
           + line->window_context_ps * s->decode_window_context_tokens;
}

static i64 model_step_ps(step_times *t, const shape *s)
{
    i64 ps;
    decode_line line;
    if (s->decode_sequences && !s->prefill_tokens) {
        const decode_line *last = last_line(t, s);
        if (last) return on_line(last, s);
        if (find_line(t, s, &line)) return on_line(&line, s);
    } else if (in_reason(s)) {
        double found_ps = step_seconds(t, &t->quick, s) * PS_PER_S;
        if (!rounded_alike(found_ps)) found_ps = step_seconds(t, &t->exact, s) * PS_PER_S;
        if (rounded(found_ps, &ps)) return AT_LEAST_1(ps);
    }
    return ask_step(t, s);
}

static i64 model_joint_ps(step_times *t, const shape *shapes, i64 count)
{
    i64 ps;
    int plain = count == t->source.ranks || !t->source.has_shared;
    for (i64 i = 0; i < count; i++) plain = plain && in_reason(&shapes[i]);
    if (plain) {
        double found_ps = joint_seconds(t, &t->quick, shapes, count) * PS_PER_S;
        if (!rounded_alike(found_ps)) found_ps = joint_seconds(t, &t->exact, shapes, count) * PS_PER_S;
        if (rounded(found_ps, &ps)) return AT_LEAST_1(ps);
    }
    return ask_joint(t, shapes, count);
}

/* other step times, multiplied: capacity.planning.step_error.ScaledSteps */

/* -1: failed; 0: not in integers */
static i64 scaled(step_times *t, i64 inner_ps, double factor)
{
    i64 ps;
    if (inner_ps < 0) t->failed = 1;
    if (inner_ps < 0) return -1;
    return rounded((double)inner_ps * factor, &ps) ? AT_LEAST_1(ps) : 0;
}

static int scaled_piece(step_times *t, const shape *s, decode_line *out)
{
    decode_line line;
    if (!decode_piece(t->source.inner, s, &line)) return 0;
    double factor = t->source.decode_factor;
    *out = line;
    return rounded((double)line.base_ps * factor, &out->base_ps)
           && rounded((double)line.context_ps * factor, &out->context_ps)
           && rounded((double)line.window_context_ps * factor, &out->window_context_ps);
}

/* Steps without lines, which verify drafts, use the line between two knots. -1: failed. */
static i64 scaled_on_line(step_times *t, const shape *s)
{
    i64 width, low = knot(s->decode_context_tokens, &width), ps;
    knotted *entry = entry_of(t, s, low, low), own = {0};
    if (!entry) entry = &own;
    if (!entry->used) {
        shape at = *s;
        at.decode_context_tokens = at.decode_window_context_tokens = low;
        i64 first = step_ps(t->source.inner, &at);
        at.decode_context_tokens = at.decode_window_context_tokens = low + width;
        i64 last = step_ps(t->source.inner, &at);
        if (first < 0 || last < 0) return -1;
        entry->slope_ps = (double)(last - first) / (double)width * t->source.decode_factor;
        entry->first_ps = (double)first * t->source.decode_factor;
        entry->used = 1;
        t->num_lines++;
    }
    double at_ps = entry->first_ps + entry->slope_ps * (double)(s->decode_context_tokens - low);
    return rounded(at_ps, &ps) ? AT_LEAST_1(ps) : 0;
}

static i64 scaled_step_ps(step_times *t, const shape *s)
{
    decode_line line;
    i64 ps = 0;
    if (!in_reason(s)) return ask_step(t, s);
    if (s->prefill_tokens || !s->decode_sequences)
        ps = scaled(t, step_ps(t->source.inner, s), t->source.prefill_factor);
    else if (scaled_piece(t, s, &line))
        return on_line(&line, s);
    else if (s->decode_context_tokens != s->decode_window_context_tokens)
        ps = scaled(t, step_ps(t->source.inner, s), t->source.decode_factor);
    else
        ps = scaled_on_line(t, s);
    return ps ? answer(t, ps) : ask_step(t, s);
}

static i64 scaled_joint_ps(step_times *t, const shape *shapes, i64 count)
{
    int prefill = 0;
    for (i64 i = 0; i < count; i++) prefill = prefill || shapes[i].prefill_tokens;
    double factor = prefill ? t->source.prefill_factor : t->source.decode_factor;
    i64 ps = scaled(t, joint_ps(t->source.inner, shapes, count), factor);
    return ps ? answer(t, ps) : ask_joint(t, shapes, count);
}

/* capacity.step.SlowestRank: ranks without communication */

static i64 slowest_joint_ps(step_times *t, const shape *shapes, i64 count)
{
    i64 slowest = -1;
    for (i64 i = 0; i < count; i++) {
        const shape *s = &shapes[i];
        if (!(s->prefill_tokens + s->decode_sequences + s->draft_tokens)) continue;
        i64 ps = step_ps(t, s);
        if (ps < 0) return -1;
        if (ps > slowest) slowest = ps;
    }
    return slowest < 0 ? step_ps(t, &(shape){0}) : slowest;
}

/* capacity.pool.drafting.rounds.DraftedSteps: every step with drafts includes the drafting time, and a draft model
 * also computes the prompts. Python is called for steps of several ranks. */

static double draft_step_seconds(step_times *draft, shape at, double drafts)
{
    i64 rows;
    if (!rounded((double)at.decode_sequences * drafts, &rows)) return NAN;
    at.draft_tokens = rows;
    return in_reason(&at) ? step_seconds(draft, &draft->exact, &at) : NAN;
}

/* With prompts that the draft model also computes (NULL: none). NaN: not in integers, or a callback failed. */
static double new_draft_seconds(const step_source *source, i64 sequences, i64 context, const shape *prompts)
{
    i64 window = source->draft_window_tokens;
    i64 clipped = window >= 0 && window < context ? window : context;
    shape plain = {.decode_sequences = sequences, .decode_context_tokens = sequences * context,
                   .decode_window_context_tokens = sequences * clipped};
    shape with_prompts = plain;
    if (prompts) {
        with_prompts = *prompts;
        with_prompts.decode_sequences = plain.decode_sequences;
        with_prompts.decode_context_tokens = plain.decode_context_tokens;
        with_prompts.decode_window_context_tokens = plain.decode_window_context_tokens;
    }
    double first = draft_step_seconds(source->draft, with_prompts, source->first_drafts);
    double level = sequences ? draft_step_seconds(source->draft, plain, source->level_drafts) : 0.0;
    return first + (double)(source->draft_steps - 1) * level;
}

/* The same with a cache, because the mean context of a batch is an integer number of tokens. */
static double draft_seconds(step_times *t, const shape *s)
{
    i64 sequences = s->draft_tokens ? s->decode_sequences : 0;
    if (!t->source.draft) return table_seconds(t, DRAFT_SECONDS, sequences);
    i64 context = s->decode_context_tokens / (sequences ? sequences : 1);
    if (context < 1) context = 1;
    if (s->prefill_tokens) return new_draft_seconds(&t->source, sequences, context, s);
    if (!t->drafted) t->drafted = calloc((size_t)1 << DRAFTING_BITS, sizeof *t->drafted);
    if (!t->drafted || sequences >= MOST_SIZES) return new_draft_seconds(&t->source, sequences, context, NULL);
    i64 batch = sequences << 40 | context, place = context + sequences * SIZE_STRIDE;
    drafting *known = &t->drafted[place & (((i64)1 << DRAFTING_BITS) - 1)];
    if (known->batch != batch) *known = (drafting){batch, new_draft_seconds(&t->source, sequences, context, NULL)};
    return known->seconds;
}

static i64 drafted_step_ps(step_times *t, const shape *s)
{
    i64 drafting;
    if (!in_reason(s) || (s->draft_tokens && !s->decode_sequences)) return ask_step(t, s);
    i64 ps = step_ps(t->source.inner, s);
    if (ps < 0 || !(s->draft_tokens || (s->prefill_tokens && t->source.draft))) return answer(t, ps);
    if (rounded(draft_seconds(t, s) * PS_PER_S, &drafting)) return ps + drafting;
    if (t->source.draft && t->source.draft->failed) t->failed = 1;
    return ask_step(t, s);
}

/* affine times */

static i64 affine_step_ps(step_times *t, const shape *s)
{
    i64 rows = s->prefill_tokens + s->decode_sequences + s->draft_tokens, of_rows, of_contexts, ps;
    if (__builtin_mul_overflow(t->source.row_ps, rows, &of_rows)
        || __builtin_mul_overflow(t->source.context_ps, s->decode_context_tokens, &of_contexts)
        || __builtin_add_overflow(t->source.base_ps, of_rows, &ps)
        || __builtin_add_overflow(ps, of_contexts, &ps))
        return ask_step(t, s);
    return ps;
}

static int affine_piece(step_times *t, const shape *s, decode_line *out)
{
    i64 rows = s->decode_sequences + s->draft_tokens;
    if (!in_reason(s)) return 0;
    *out = (decode_line){t->source.base_ps + t->source.row_ps * rows, t->source.context_ps, 0, NEVER, NEVER};
    return 1;
}

/* called by engines */

i64 step_ps(step_times *t, const shape *s)
{
    i64 ps;
    if (t->failed) return -1;
    if (s->encoder_tokens || s->audio_tokens) return ask_step(t, s);
    switch (t->source.kind) {
    case STEPS_MODEL: return model_step_ps(t, s);
    case STEPS_AFFINE: return affine_step_ps(t, s);
    case STEPS_SCALED: return scaled_step_ps(t, s);
    case STEPS_DELAYED:
        ps = step_ps(t->source.inner, s);
        return ps < 0 ? answer(t, ps) : AT_LEAST_1(ps + t->source.added_ps);
    case STEPS_SLOWEST: return answer(t, step_ps(t->source.inner, s));
    case STEPS_DRAFTED: return drafted_step_ps(t, s);
    default: return ask_step(t, s);
    }
}

i64 joint_ps(step_times *t, const shape *shapes, i64 count)
{
    if (t->failed) return -1;
    for (i64 i = 0; i < count; i++)
        if (shapes[i].encoder_tokens || shapes[i].audio_tokens) return ask_joint(t, shapes, count);
    switch (t->source.kind) {
    case STEPS_MODEL: return model_joint_ps(t, shapes, count);
    case STEPS_SCALED: return scaled_joint_ps(t, shapes, count);
    case STEPS_AFFINE:
    case STEPS_DELAYED:
    case STEPS_SLOWEST: return slowest_joint_ps(t, shapes, count);
    default: return ask_joint(t, shapes, count);
    }
}

int decode_piece(step_times *t, const shape *s, decode_line *out)
{
    const decode_line *last;
    int found;
    if (t->failed) return 0;
    switch (t->source.kind) {
    case STEPS_MODEL:
        last = last_line(t, s);
        if (!last) return find_line(t, s, out) || ask_piece(t, s, out);
        *out = *last;
        return 1;
    case STEPS_AFFINE: return affine_piece(t, s, out) || ask_piece(t, s, out);
    case STEPS_SCALED: found = scaled_piece(t, s, out); break;
    case STEPS_DELAYED:
        found = decode_piece(t->source.inner, s, out);
        out->base_ps += found ? t->source.added_ps : 0;
        break;
    case STEPS_SLOWEST: found = decode_piece(t->source.inner, s, out); break;
    case STEPS_DRAFTED: return 0;
    default: return ask_piece(t, s, out);
    }
    if (t->source.inner->failed) t->failed = 1;
    return found;
}

int step_line(step_times *t, const shape *s, decode_line *out)
{
    const decode_line *last;
    switch (t->source.kind) {
    case STEPS_MODEL:
        last = last_line(t, s);
        if (!last) return find_line(t, s, out);
        *out = *last;
        return 1;
    case STEPS_AFFINE: return affine_piece(t, s, out);
    case STEPS_SCALED: return in_reason(s) && scaled_piece(t, s, out);
    default: return 0;
    }
}

/* called by Python */

static void free_exponents(step_times *t)
{
    for (i64 i = 0; t->quick.of && i < t->num_exponents; i++) exponent_free(&t->quick.of[i]);
    exponent_free(&t->quick.overlap);
    free(t->quick.of);
    free(t->exact.of);
}

/* 0: no memory */
static int make_exponents(step_times *t)
{
    t->exact.of = calloc((size_t)t->num_exponents + 1, sizeof *t->exact.of);
    t->quick.of = calloc((size_t)t->num_exponents + 1, sizeof *t->quick.of);
    if (!t->exact.of || !t->quick.of) return 0;
    t->exact.overlap = t->quick.overlap = exponent_of(t->source.overlap_sharpness);
    if (!exponent_add_pieces(&t->quick.overlap)) return 0;
    for (i64 i = 0; i < t->num_exponents; i++) {
        t->exact.of[i] = t->quick.of[i] = exponent_of(t->source.operators[i].sharpness);
        if (i < t->source.num_operators && !exponent_add_pieces(&t->quick.of[i])) return 0;
    }
    return 1;
}

step_times *step_times_new(const step_source *source)
{
    step_times *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->source = *source;
    t->num_exponents = source->num_operators;
    for (i64 i = 0; i < NUM_TABLES; i++)
        if (source->end_operator[i] > t->num_exponents) t->num_exponents = source->end_operator[i];
    if (!make_exponents(t)) {
        free_exponents(t);
        free(t);
        return NULL;
    }
    return t;
}

void step_times_free(step_times *t)
{
    for (i64 i = 0; i < NUM_TABLES; i++) free(t->tables[i].at);
    free(t->lines);
    free(t->recent_memory);
    free(t->drafted);
    free_exponents(t);
    free(t);
}

i64 step_times_failed(const step_times *t)
{
    return t->failed;
}

void step_times_forgive(step_times *t)
{
    t->failed = 0;
}

void step_times_many(step_times *t, const shape *shapes, i64 count, i64 by_line, i64 *out_ps)
{
    decode_line line;
    for (i64 i = 0; i < count; i++)
        out_ps[i] = by_line && decode_piece(t, &shapes[i], &line) ? on_line(&line, &shapes[i])
                                                                   : step_ps(t, &shapes[i]);
}

double step_times_pow(double base, double exponent)
{
    return pow(base, exponent);
}

double step_times_log2(double value)
{
    return log2(value);
}

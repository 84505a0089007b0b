/* Steps of an engine in bounded memory: step_work.py. */
#include "work.h"
#include "internal.h"

struct work {
    memory *memory;
    i64 held_ps;
    VEC(decode_kind) kinds;
    VEC(i64) keys; /* kinds */
    i64 *places;   /* by hash of a key: index of the kind + 1; 0: free */
    int place_bits;
    i64 last_key, last; /* successive steps are often of one kind */
    prefill_sample prefills[MOST_PREFILLS + 1];
    i64 num_prefills, stride, prefill_steps, prefill_ps;
};

work *work_new(memory *m)
{
    work *w = take_memory(m, sizeof *w);
    w->memory = m;
    w->place_bits = 6;
    w->places = take_memory(m, sizeof *w->places << w->place_bits);
    w->last_key = MISSING;
    w->stride = 1;
    return w;
}

/* A number's leading bits and how many follow, as one number. */
static i64 rounded(i64 number, int bits)
{
    int length = 64 - __builtin_clzll((uint64_t)number | 1);
    int shift = MAX(length - bits, 0);
    return ((i64)shift << bits) + (number >> shift);
}

/* Index of a key's kind, or the free entry for it. */
static i64 *place_of(const work *w, i64 key)
{
    uint64_t mask = ((uint64_t)1 << w->place_bits) - 1;
    uint64_t place = ((uint64_t)key * 0x9E3779B97F4A7C15u) >> (64 - w->place_bits);
    while (w->places[place] && w->keys.at[w->places[place] - 1] != key)
        place = (place + 1) & mask;
    return &w->places[place];
}

static void double_places(work *w)
{
    free_memory(w->memory, w->places);
    w->places = NULL;
    w->place_bits++;
    w->places = take_memory(w->memory, sizeof *w->places << w->place_bits);
    for (i64 i = 0; i < w->keys.count; i++)
        *place_of(w, w->keys.at[i]) = i + 1;
}

static decode_kind *kind_of(work *w, const shape *s)
{
    i64 rows = rounded(s->decode_sequences + s->draft_tokens, SIZE_BITS);
    i64 key = rows << 32 | rounded(s->decode_context_tokens, CONTEXT_BITS);
    if (key == w->last_key)
        return &w->kinds.at[w->last];
    i64 *place = place_of(w, key);
    if (!*place) {
        PUSH(w->memory, &w->keys, key);
        PUSH(w->memory, &w->kinds, ((decode_kind){.shape = *s}));
        *place = w->kinds.count;
        if (w->kinds.count * 2 > (i64)1 << w->place_bits) {
            double_places(w);
            place = place_of(w, key);
        }
    }
    w->last_key = key;
    w->last = *place - 1;
    return &w->kinds.at[w->last];
}

/* All are kept at first, then every second, fourth and so on as their number grows. */
static void count_prefill(work *w, const shape *s, i64 duration_ps)
{
    if (w->prefill_steps % w->stride == 0) {
        w->prefills[w->num_prefills++] = (prefill_sample){*s, duration_ps};
        if (w->num_prefills > MOST_PREFILLS) {
            w->num_prefills = MOST_PREFILLS / 2 + 1;
            for (i64 i = 0; i < w->num_prefills; i++)
                w->prefills[i] = w->prefills[2 * i];
            w->stride *= 2;
        }
    }
    w->prefill_steps++;
    w->prefill_ps += duration_ps;
}

/* Record a step that was decided, and the wait for KV before it. */
void work_step(work *w, const shape *s, i64 duration_ps, i64 held_ps)
{
    w->held_ps += held_ps;
    if (s->prefill_tokens) {
        count_prefill(w, s, duration_ps);
        return;
    }
    decode_kind *kind = kind_of(w, s);
    kind->steps++;
    kind->busy_ps += duration_ps;
}

void work_export(const work *w, work_arrays *out)
{
    *out = (work_arrays){
        .held_ps = w->held_ps,
        .num_kinds = w->kinds.count,
        .num_prefills = w->num_prefills,
        .stride = w->stride,
        .prefill_steps = w->prefill_steps,
        .prefill_ps = w->prefill_ps,
        .kinds = w->kinds.at,
        .prefills = w->prefills,
    };
}

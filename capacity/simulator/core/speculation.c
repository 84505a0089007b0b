/* Drafts, and how many of them a verification accepts. See schedulers/sequence.py. */
#include "internal.h"

/* Steele et al., SplitMix64, OOPSLA 2014. */
uint64_t mixed(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u + c * 0x8CB92BA72F3D8DD7u + 0x2545F4914F6CDD1Du;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

#define CLASS_DRAW ((uint64_t)1 << 40) /* instead of a verification: which class a request is of */

/* The rates of a request's class. */
static const double *rates_of(const speculation *s, i64 request)
{
    if (s->num_classes < 2)
        return s->rates;
    return s->rates + s->num_rates * (i64)(mixed(s->seed, (uint64_t)request, CLASS_DRAW) >> 60);
}

i64 accepted_drafts(const speculation *s, sequence *r, i64 drafts)
{
    i64 verification = r->accepted++;
    if (s->num_accept)
        return MIN(s->accept[verification % s->num_accept], drafts);
    uint64_t state = mixed(s->seed, (uint64_t)r->request, (uint64_t)verification);
    const double *rates = rates_of(s, r->request);
    i64 count = 0, deepest = MIN(drafts, s->num_rates);
    while (count < deepest) {
        state = mixed(state, (uint64_t)count, 0);
        if ((double)(state >> 11) * 0x1p-53 >= rates[count])
            break;
        count++;
    }
    return count;
}

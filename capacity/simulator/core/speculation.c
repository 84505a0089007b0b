/* Draft tokens, and the number that a verification accepts. See schedulers/sequence.py. */
#include "internal.h"

#define CLASS_DRAW ((uint64_t)1 << 40) /* replaces the number of a verification to draw the class of a request */

i64 draft_class(const speculation *s, i64 request)
{
    return (i64)(mixed(s->seed, (uint64_t)request, CLASS_DRAW) >> 60);
}

/* The rates of a request's class. */
static const double *rates_of(const speculation *s, i64 request)
{
    return s->num_classes < 2 ? s->rates : s->rates + s->num_rates * draft_class(s, request);
}

i64 accepted_drafts(const speculation *s, sequence *r, i64 drafts)
{
    i64 verification = r->accepted++;
    if (s->num_accept)
        return MIN(s->accept[verification % s->num_accept], drafts);
    uint64_t state = mixed(s->seed, (uint64_t)r->request, (uint64_t)verification);
    if (!r->rates)
        r->rates = rates_of(s, r->request);
    const double *rates = r->rates;
    i64 count = 0, deepest = MIN(drafts, s->num_rates);
    while (count < deepest) {
        state = mixed_further(state, (uint64_t)count);
        if ((double)(state >> 11) * 0x1p-53 >= rates[count])
            break;
        count++;
    }
    return count;
}

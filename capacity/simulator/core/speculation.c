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

i64 accepted_drafts(const speculation *s, sequence *r, i64 drafts)
{
    i64 verification = r->accepted++;
    if (s->num_accept)
        return MIN(s->accept[verification % s->num_accept], drafts);
    uint64_t state = mixed(s->seed, (uint64_t)r->request, (uint64_t)verification);
    i64 count = 0, deepest = MIN(drafts, s->num_rates);
    while (count < deepest) {
        state = mixed(state, (uint64_t)count, 0);
        if ((double)(state >> 11) * 0x1p-53 >= s->rates[count])
            break;
        count++;
    }
    return count;
}

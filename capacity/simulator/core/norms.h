/* The p-norm of two times, (a^p + b^p)^(1/p): the time of two overlapping activities of a GPU. See capacity.step.norm.
 *
 * Two calls of pow take most of the evaluation of a step time. Where only integer picoseconds are needed, a polynomial
 * is nearly as exact. `QUICK_ERROR` is a bound of the relative error of a sum of such norms. If this error could
 * change the rounding, the exact sum is used (rounded_alike).
 */
#ifndef CAPACITY_NORMS_H
#define CAPACITY_NORMS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

#define QUICK_ERROR 0x1p-44
enum { PIECE_BITS = 5, TERMS = 7 }; /* 32 pieces an octave */

/* Polynomial for (1 + x^p)^(1/p) in a part of an octave of x, in the distance from its middle relative to half of its
 * width. */
typedef struct {
    double state; /* 0: not computed yet; 1: accurate enough; -1: not */
    double terms[TERMS];
} norm_piece;

/* The exponent p of a norm. Below `negligible` times the larger value, the smaller one only adds rounding error. */
typedef struct {
    double sharpness, inverse, negligible;
    int64_t first, count; /* piece 0 begins where the leading bits of x are `first` */
    norm_piece *pieces;   /* NULL: exact */
} exponent;

exponent exponent_of(double sharpness);
int exponent_add_pieces(exponent *p); /* 0: no memory */
void exponent_free(exponent *p);
double exact_norm(double ratio, const exponent *p);
double new_piece_norm(double ratio, const exponent *p); /* if the piece is not computed yet or not accurate */

/* Of a ratio from `negligible` to 1. */
static inline double quick_norm(double ratio, const exponent *p)
{
    uint64_t bits;
    memcpy(&bits, &ratio, sizeof bits);
    int64_t number = (int64_t)(bits >> (52 - PIECE_BITS)) - p->first;
    if ((uint64_t)number >= (uint64_t)p->count)
        return exact_norm(ratio, p);
    const norm_piece *piece = &p->pieces[number];
    if (piece->state <= 0.0)
        return new_piece_norm(ratio, p);
    uint64_t within = bits & (((uint64_t)1 << (52 - PIECE_BITS)) - 1); /* as a float from 1 to 2 */
    within = within << PIECE_BITS | (uint64_t)0x3FF << 52;
    double x;
    memcpy(&x, &within, sizeof x);
    x = 2.0 * x - 3.0;
    const double *c = piece->terms;
    double square = x * x;
    double low = c[0] + c[1] * x + (c[2] + c[3] * x) * square;
    return low + (c[4] + c[5] * x + c[6] * square) * (square * square);
}

static inline double norm(double first, double second, const exponent *p)
{
    if (first < second) {
        double larger = second;
        second = first;
        first = larger;
    }
    if (second <= 0.0 || p->sharpness == 1.0)
        return first + second;
    double ratio = second / first;
    if (ratio < p->negligible)
        return first;
    return first * (p->pieces ? quick_norm(ratio, p) : exact_norm(ratio, p));
}

/* The nearest integer, of two the even one: `rint`, without a call where the processor has no instruction for it. */
static inline double nearest(double number)
{
    const double integers = 0x1.8p52; /* floats of this size have no fraction */
    return fabs(number) < 0x1p51 ? (number + integers) - integers : rint(number);
}

/* Whether all numbers within QUICK_ERROR of this one round to the same integer. */
static inline int rounded_alike(double number)
{
    return fabs(number - nearest(number)) < 0.5 - fabs(number) * QUICK_ERROR;
}

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

/* Pieces of polynomials that approximate a norm. */
#include "norms.h"

#include <stdlib.h>

#define MOST_PIECES 8192 /* exponents far below 1 need more pieces, so they stay exact */
#define PIECE_ERROR 0x1p-48
#define PI 3.14159265358979323846

double exact_norm(double ratio, const exponent *p)
{
    return pow(1.0 + pow(ratio, p->sharpness), p->inverse);
}

exponent exponent_of(double sharpness)
{
    return (exponent){.sharpness = sharpness, .inverse = 1.0 / sharpness, .negligible = exp2(-56.0 / sharpness)};
}

static int64_t leading_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int64_t)(bits >> (52 - PIECE_BITS));
}

int exponent_add_pieces(exponent *p)
{
    if (!(p->negligible > 0.0 && p->negligible < 1.0) || p->sharpness == 1.0)
        return 1;
    p->first = leading_bits(p->negligible);
    p->count = leading_bits(1.0) - p->first + 1;
    if (p->count > MOST_PIECES)
        return 1;
    p->pieces = calloc((size_t)p->count, sizeof *p->pieces);
    return p->pieces != NULL;
}

void exponent_free(exponent *p)
{
    free(p->pieces);
    p->pieces = NULL;
}

static double evaluated(const double *c, double x)
{
    double sum = 0.0;
    for (int i = TERMS - 1; i >= 0; i--)
        sum = sum * x + c[i];
    return sum;
}

/* Interpolate the norm at Chebyshev points by divided differences, then test the polynomial between them. */
static void make_piece(const exponent *p, int64_t number)
{
    norm_piece *piece = &p->pieces[number];
    uint64_t bits = (uint64_t)(p->first + number) << (52 - PIECE_BITS), next = bits + ((uint64_t)1 << (52 - PIECE_BITS));
    double low, high, at[TERMS], newton[TERMS], *c = piece->terms;
    memcpy(&low, &bits, sizeof low);
    memcpy(&high, &next, sizeof high);
    double middle = (low + high) / 2.0, half = (high - low) / 2.0;
    for (int i = 0; i < TERMS; i++) {
        at[i] = cos((2 * i + 1) * PI / (2 * TERMS));
        newton[i] = exact_norm(middle + half * at[i], p);
    }
    for (int order = 1; order < TERMS; order++)
        for (int i = TERMS - 1; i >= order; i--)
            newton[i] = (newton[i] - newton[i - 1]) / (at[i] - at[i - order]);
    for (int i = 0; i < TERMS; i++)
        c[i] = 0.0;
    for (int i = TERMS - 1; i >= 0; i--) { /* times (x - at[i]), plus the next */
        for (int k = TERMS - 1; k > 0; k--)
            c[k] = c[k - 1] - at[i] * c[k];
        c[0] = newton[i] - at[i] * c[0];
    }
    piece->state = 1.0;
    for (int i = 0; i <= 2 * TERMS; i++) {
        double x = -1.0 + (double)i / TERMS, exact = exact_norm(middle + half * x, p);
        if (!(fabs(evaluated(c, x) - exact) <= PIECE_ERROR * exact))
            piece->state = -1.0;
    }
}

double new_piece_norm(double ratio, const exponent *p)
{
    int64_t number = leading_bits(ratio) - p->first;
    if (p->pieces[number].state == 0.0)
        make_piece(p, number);
    return p->pieces[number].state > 0.0 ? quick_norm(ratio, p) : exact_norm(ratio, p);
}

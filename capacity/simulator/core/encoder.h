/* Images in vLLM V1: the images to encode before a step, and the cache of encoder outputs. See schedulers/encoding.py. */
#ifndef CAPACITY_ENCODER_H
#define CAPACITY_ENCODER_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef struct image_encoder image_encoder;

image_encoder *encoder_new(memory *m, i64 tokens);
void encoder_begin_step(image_encoder *e);
/* How many of the next tokens fit: all, or those before the first image without space. */
i64 encoder_schedulable_tokens(const image_encoder *e, const sequence *r, i64 computed, i64 tokens);
/* Encode a chunk's images that are not cached; mark the chunk's images as in use. */
void encoder_encode(image_encoder *e, sequence *r, i64 computed, i64 tokens);
void encoder_free_computed(image_encoder *e, sequence *r); /* images whose tokens are all computed */
void encoder_release(image_encoder *e, sequence *r);       /* all images of a request */
void encoder_cancel(image_encoder *e, sequence *r);        /* images of a request that this step preempts */
void encoder_count(const image_encoder *e, shape *sums);   /* add the images that the step encodes */

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

/* Images in vLLM V1: the images to encode before a step, and the cache of encoder outputs. See schedulers/encoding.py. */
#include "encoder.h"

typedef struct {
    i64 request, image, tokens;
    int is_audio;
} encoded_image;
typedef VEC(encoded_image) image_list;

struct image_encoder {
    memory *memory;
    i64 free, kept_tokens;
    image_list held; /* needed images */
    image_list kept; /* images no longer needed, in order of eviction */
    image_list now;  /* images of this step */
};

image_encoder *encoder_new(memory *m, i64 tokens)
{
    image_encoder *e = take_memory(m, sizeof *e);
    e->memory = m;
    e->free = tokens;
    return e;
}

void encoder_begin_step(image_encoder *e)
{
    e->now.count = 0;
}

/* The clip of a request is its last image. */
static int is_audio(const sequence *r, i64 image)
{
    return r->audio_tokens && image == r->images - 1;
}

static i64 size_of(const sequence *r, i64 image)
{
    return is_audio(r, image) ? r->audio_tokens : r->image_tokens;
}

static i64 end_of(const sequence *r, i64 image)
{
    return image * r->image_tokens + size_of(r, image);
}

/* The first image with tokens from `computed` on, if any. */
static i64 first_image(const sequence *r, i64 computed)
{
    i64 first = r->image_tokens ? MIN(computed / r->image_tokens, r->images) : 0;
    if (r->audio_tokens)
        first = MIN(first, r->images - 1);
    while (first < r->images && end_of(r, first) <= computed)
        first++;
    return first;
}

/* Index in a list; -1: not there. */
static i64 place_of(const image_list *list, i64 request, i64 image)
{
    for (i64 i = list->count - 1; i >= 0; i--)
        if (list->at[i].request == request && list->at[i].image == image)
            return i;
    return -1;
}

i64 encoder_schedulable_tokens(const image_encoder *e, const sequence *r, i64 computed, i64 tokens)
{
    i64 room = e->free + e->kept_tokens;
    for (i64 image = first_image(r, computed); image < r->images; image++) {
        i64 start = image * r->image_tokens, size = size_of(r, image);
        if (start >= computed + tokens)
            break;
        if (place_of(&e->held, r->request, image) >= 0)
            continue;
        if (size > room)
            return MAX(start - computed, 0);
        room -= size;
    }
    return tokens;
}

static void evict(image_encoder *e, i64 place)
{
    e->free += e->kept.at[place].tokens;
    e->kept_tokens -= e->kept.at[place].tokens;
    REMOVE_AT(&e->kept, place);
}

void encoder_encode(image_encoder *e, sequence *r, i64 computed, i64 tokens)
{
    for (i64 image = first_image(r, computed); image < r->images; image++) {
        encoded_image item = {r->request, image, size_of(r, image), is_audio(r, image)};
        if (image * r->image_tokens >= computed + tokens)
            break;
        if (place_of(&e->held, r->request, image) >= 0)
            continue;
        i64 place = place_of(&e->kept, r->request, image);
        if (place < 0) {
            while (e->free < item.tokens) {
                REQUIRE(e->memory, e->kept.count);
                evict(e, 0);
            }
            PUSH(e->memory, &e->now, item);
        } else {
            evict(e, place);
        }
        e->free -= item.tokens;
        PUSH(e->memory, &e->held, item);
        r->held_images++;
    }
}

/* Move an image from the held to the kept ones, if it is held. */
static void release_image(image_encoder *e, sequence *r, i64 image)
{
    i64 place = place_of(&e->held, r->request, image);
    if (place < 0)
        return;
    PUSH(e->memory, &e->kept, e->held.at[place]);
    e->kept_tokens += e->held.at[place].tokens;
    REMOVE_AT(&e->held, place);
    r->held_images--;
}

void encoder_free_computed(image_encoder *e, sequence *r)
{
    for (i64 image = 0; r->held_images && image < r->images && end_of(r, image) <= r->computed; image++)
        release_image(e, r, image);
}

void encoder_release(image_encoder *e, sequence *r)
{
    for (i64 image = 0; r->held_images && image < r->images; image++)
        release_image(e, r, image);
}

void encoder_cancel(image_encoder *e, sequence *r)
{
    for (i64 i = e->now.count - 1; i >= 0; i--) {
        if (e->now.at[i].request != r->request)
            continue;
        i64 image = e->now.at[i].image;
        release_image(e, r, image);
        evict(e, place_of(&e->kept, r->request, image));
        REMOVE_AT(&e->now, i);
    }
}

void encoder_count(const image_encoder *e, shape *sums)
{
    for (i64 i = 0; i < e->now.count; i++) {
        i64 tokens = e->now.at[i].tokens;
        *(e->now.at[i].is_audio ? &sums->audio_tokens : &sums->encoder_tokens) += tokens;
        *(e->now.at[i].is_audio ? &sums->audio_pairs : &sums->encoder_pairs) += tokens * tokens;
    }
}

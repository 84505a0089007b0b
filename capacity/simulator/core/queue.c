/* A double-ended queue of sequences: a ring buffer whose capacity is a power of two. */
#include "internal.h"

static void make_room(memory *m, queue *q)
{
    if (q->count < q->room)
        return;
    i64 room = q->room ? 2 * q->room : 16;
    sequence **at = take_memory(m, (size_t)room * sizeof *at);
    for (i64 i = 0; i < q->count; i++)
        at[i] = queue_at(q, i);
    free_memory(m, q->at);
    q->at = at;
    q->first = 0;
    q->room = room;
}

void queue_append(memory *m, queue *q, sequence *r)
{
    make_room(m, q);
    q->at[(q->first + q->count++) & (q->room - 1)] = r;
}

void queue_prepend(memory *m, queue *q, sequence *r)
{
    make_room(m, q);
    q->first = (q->first - 1) & (q->room - 1);
    q->at[q->first] = r;
    q->count++;
}

void queue_insert(memory *m, queue *q, i64 place, sequence *r)
{
    queue_append(m, q, r);
    for (i64 i = q->count - 1; i > place; i--)
        q->at[(q->first + i) & (q->room - 1)] = queue_at(q, i - 1);
    q->at[(q->first + place) & (q->room - 1)] = r;
}

sequence *queue_pop(queue *q)
{
    sequence *r = q->at[q->first];
    q->first = (q->first + 1) & (q->room - 1);
    q->count--;
    return r;
}

void queue_remove(queue *q, const sequence *r)
{
    i64 place = 0;
    while (place < q->count && queue_at(q, place) != r)
        place++;
    if (place == q->count)
        return;
    for (i64 i = place; i + 1 < q->count; i++)
        q->at[(q->first + i) & (q->room - 1)] = queue_at(q, i + 1);
    q->count--;
}

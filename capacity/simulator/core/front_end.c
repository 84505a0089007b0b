/* Processes of the front end: each tokenizes prompts and sends messages, first come, first served. See
 * front_end_process.py. */
#include <math.h>

#include "engine.h"

void front_end_init(front_end *f, memory *m, const core_engine *setup)
{
    f->memory = m;
    f->num_processes = setup->num_processes;
    f->free_ps = take_memory(m, (size_t)f->num_processes * sizeof *f->free_ps);
    f->turn_ends_ps = take_memory(m, (size_t)f->num_processes * sizeof *f->turn_ends_ps);
    f->last_taken_in_ps = take_memory(m, (size_t)f->num_processes * sizeof *f->last_taken_in_ps);
    f->input_token_s = setup->input_token_s;
    f->request_ps = setup->request_ps;
    f->message_ps = setup->message_ps;
    f->tokenizes = f->input_token_s > 0.0 || f->request_ps > 0;
}

static i64 serve(front_end *f, i64 request, i64 work_ps, i64 now_ps)
{
    i64 *free_ps = &f->free_ps[request % f->num_processes];
    *free_ps = MAX(*free_ps, now_ps) + work_ps;
    if (*free_ps >= NEVER / 4)
        fail(f->memory, BAD_INPUT, "the front end is busy beyond the end of simulated time");
    return *free_ps;
}

static int comes_before(const tokenized *a, const tokenized *b)
{
    return a->at_ps != b->at_ps ? a->at_ps < b->at_ps : a->order < b->order;
}

static void sift_down(front_end *f, i64 at, tokenized one)
{
    tokenized *heap = f->coming.at;
    for (i64 child; (child = 2 * at + 1) < f->coming.count; at = child) {
        if (child + 1 < f->coming.count && comes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!comes_before(&heap[child], &one))
            break;
        heap[at] = heap[child];
    }
    heap[at] = one;
}

static void push(front_end *f, tokenized one)
{
    PUSH(f->memory, &f->coming, one);
    tokenized *heap = f->coming.at;
    i64 at = f->coming.count - 1;
    for (; at && comes_before(&one, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = one;
}

/* A request has arrived; its prompt is tokenized in its turn, and then the engine gets it. */
void front_end_take_in(front_end *f, i64 request, i64 prompt_tokens, i64 now_ps)
{
    double work_ps = rint((double)prompt_tokens * f->input_token_s * 1e12);
    if (!(work_ps < (double)(NEVER / 4)))
        fail(f->memory, BAD_INPUT, "request %lld is tokenized beyond the end of simulated time", (long long)request);
    i64 process = request % f->num_processes, done_ps = serve(f, request, (i64)work_ps + f->request_ps, now_ps);
    f->last_taken_in_ps[process] = done_ps;
    if (f->turn_ends_ps[process] <= now_ps || !f->request_ps)
        f->turn_ends_ps[process] = done_ps;
    i64 at_ps = f->turn_ends_ps[process];
    push(f, (tokenized){at_ps, f->taken_in++, request, at_ps < done_ps});
}

/* Send a message of the engine for this request; return the instant at which it is sent. */
i64 front_end_send(front_end *f, i64 request, i64 now_ps)
{
    return serve(f, request, f->message_ps, now_ps);
}

/* The instant at which the engine gets the next request. */
i64 front_end_due_ps(const front_end *f)
{
    return f->coming.count ? f->coming.at[0].at_ps : NEVER;
}

/* Its turn may begin only now; then it waits until that is over. */
i64 front_end_pop(front_end *f)
{
    tokenized one = f->coming.at[0], last = f->coming.at[--f->coming.count];
    if (f->coming.count)
        sift_down(f, 0, last);
    if (!one.waits)
        return one.request;
    i64 process = one.request % f->num_processes;
    if (f->turn_ends_ps[process] <= one.at_ps)
        f->turn_ends_ps[process] = f->last_taken_in_ps[process];
    push(f, (tokenized){f->turn_ends_ps[process], f->taken_in++, one.request, 0});
    return -1;
}

/* Its client has left: the engine never gets it, but its prompt is still tokenized. 0: it is not here. */
int front_end_drop(front_end *f, i64 request)
{
    for (i64 i = 0; i < f->coming.count; i++) {
        if (f->coming.at[i].request != request)
            continue;
        REMOVE_AT(&f->coming, i);
        for (i64 at = f->coming.count / 2 - 1; at >= 0; at--)
            sift_down(f, at, f->coming.at[at]);
        return 1;
    }
    return 0;
}

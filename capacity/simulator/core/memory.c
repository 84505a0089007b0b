/* Memory of a fleet: a list of all allocations, so that they are freed with the fleet even if a call was aborted. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct block {
    struct block *before, *after;
    size_t bytes;
    max_align_t data[];
};

void fail(memory *m, int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->message, sizeof m->message, format, arguments);
    va_end(arguments);
    m->error = error;
    longjmp(m->on_error, error);
}

static void link_block(memory *m, struct block *b)
{
    b->before = NULL;
    b->after = m->blocks;
    if (m->blocks)
        m->blocks->before = b;
    m->blocks = b;
}

static void unlink_block(memory *m, struct block *b)
{
    if (b->before)
        b->before->after = b->after;
    else
        m->blocks = b->after;
    if (b->after)
        b->after->before = b->before;
}

void *take_memory(memory *m, size_t bytes)
{
    struct block *b = bytes < SIZE_MAX / 2 ? calloc(1, sizeof *b + bytes) : NULL;
    if (!b)
        fail(m, OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    b->bytes = bytes;
    link_block(m, b);
    return b->data;
}

void *resize_memory(memory *m, void *old, size_t old_bytes, size_t bytes)
{
    if (!old)
        return take_memory(m, bytes);
    struct block *b = (struct block *)((char *)old - offsetof(struct block, data));
    unlink_block(m, b);
    struct block *moved = bytes < SIZE_MAX / 2 ? realloc(b, sizeof *b + bytes) : NULL;
    link_block(m, moved ? moved : b);
    if (!moved)
        fail(m, OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    if (bytes > old_bytes)
        memset((char *)moved->data + old_bytes, 0, bytes - old_bytes);
    moved->bytes = bytes;
    return moved->data;
}

void free_memory(memory *m, void *what)
{
    if (!what)
        return;
    struct block *b = (struct block *)((char *)what - offsetof(struct block, data));
    unlink_block(m, b);
    free(b);
}

void free_all_memory(memory *m)
{
    while (m->blocks) {
        struct block *b = m->blocks;
        m->blocks = b->after;
        free(b);
    }
}

/* Allocations of the core that are counted, and of which one fails; linked with --wrap for each function. */
#include <stdlib.h>

long allocations, failing_allocation, live_allocations; /* failing: counted from 1; 0: none */

void *__real_malloc(size_t), *__real_calloc(size_t, size_t), *__real_realloc(void *, size_t);
void __real_free(void *);

static int fails(void)
{
    return ++allocations == failing_allocation;
}

void *__wrap_malloc(size_t bytes)
{
    void *p = fails() ? NULL : __real_malloc(bytes);
    live_allocations += p != NULL;
    return p;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    void *p = fails() ? NULL : __real_calloc(count, bytes);
    live_allocations += p != NULL;
    return p;
}

void *__wrap_realloc(void *old, size_t bytes)
{
    void *p = fails() ? NULL : __real_realloc(old, bytes);
    live_allocations += p != NULL && old == NULL;
    return p;
}

void __wrap_free(void *p)
{
    live_allocations -= p != NULL;
    __real_free(p);
}

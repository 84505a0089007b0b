/* Numbers of contents that several requests share: each block of a shared run has one. */
#ifndef CAPACITY_CONTENTS_H
#define CAPACITY_CONTENTS_H

#include "internal.h"

/* For each run key, the number of its first block's content; after the last key, the total count. */
i64 *number_contents(memory *m, const core_contents *contents, i64 count);
/* The number of the shared content at block `index`, which is before the end of the request's last run. */
i64 content_number(const core_contents *contents, const i64 *first, i64 request, i64 index);

/* First private block of a request. */
static inline i64 own_from(const core_contents *contents, i64 request)
{
    if (!contents || contents->offsets[request + 1] == contents->offsets[request])
        return 0;
    return contents->stops[contents->offsets[request + 1] - 1];
}

#endif

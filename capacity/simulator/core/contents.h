/* Numbers for contents that several requests have: each block of a run that is shared gets one. */
#ifndef CAPACITY_CONTENTS_H
#define CAPACITY_CONTENTS_H

#include "internal.h"

/* Of each run key the number of its first block's content; behind the last key, how many there are. */
i64 *number_contents(memory *m, const core_contents *contents, i64 count);
/* The number of what a request shares at block `index`, which is below the end of its last run. */
i64 content_number(const core_contents *contents, const i64 *first, i64 request, i64 index);

/* Where a request's own blocks begin. */
static inline i64 own_from(const core_contents *contents, i64 request)
{
    if (!contents || contents->offsets[request + 1] == contents->offsets[request])
        return 0;
    return contents->stops[contents->offsets[request + 1] - 1];
}

#endif

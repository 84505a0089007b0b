/* Numbers of contents that several requests share. */
#include "contents.h"

i64 *number_contents(memory *m, const core_contents *contents, i64 count)
{
    i64 *first = take_memory(m, (size_t)(contents->num_keys + 1) * sizeof *first);
    for (i64 request = 0; request < count; request++) {
        i64 start = 0;
        for (i64 run = contents->offsets[request]; run < contents->offsets[request + 1]; run++) {
            i64 key = contents->keys[run], blocks = contents->stops[run] - start;
            REQUIRE(m, key >= 0 && key < contents->num_keys && blocks >= 0);
            first[key + 1] = MAX(first[key + 1], blocks);
            start = contents->stops[run];
        }
    }
    for (i64 key = 0; key < contents->num_keys; key++)
        first[key + 1] += first[key];
    return first;
}

i64 content_number(const core_contents *contents, const i64 *first, i64 request, i64 index)
{
    i64 from = contents->offsets[request], low = from, high = contents->offsets[request + 1];
    while (low < high) { /* first run that ends after it */
        i64 middle = (low + high) / 2;
        if (contents->stops[middle] <= index)
            low = middle + 1;
        else
            high = middle;
    }
    i64 start = low > from ? contents->stops[low - 1] : 0;
    return first[contents->keys[low]] + index - start;
}

/* Data of work.c, which Python copies to `StepWork`. */
#ifndef CAPACITY_WORK_H
#define CAPACITY_WORK_H

#include "step_times.h"

enum { MOST_PREFILLS = 512 }; /* number of shapes kept; the constants are those of step_work.py */
enum { SIZE_BITS = 5, CONTEXT_BITS = 4 };

/* Equal decode steps: the first one's shape, their number and their time. */
typedef struct {
    shape shape;
    i64 steps, busy_ps;
} decode_kind;

/* One step with a prefill in it. */
typedef struct {
    shape shape;
    i64 duration_ps;
} prefill_sample;

#endif

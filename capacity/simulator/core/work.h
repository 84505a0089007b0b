/* What work.c holds, as Python takes it into `StepWork`. */
#ifndef CAPACITY_WORK_H
#define CAPACITY_WORK_H

#include "step_times.h"

enum { MOST_PREFILLS = 512 }; /* shapes kept, of step_work.py as what follows */
enum { SIZE_BITS = 5, CONTEXT_BITS = 4 };

/* Decode steps alike: the first one's shape, their number and their time. */
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

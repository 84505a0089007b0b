/* Decode rows of a vLLM V1 engine with pipeline stages: one group per step in flight. */
#ifndef CAPACITY_STAGES_H
#define CAPACITY_STAGES_H

#include "vllm_v1.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

stage_groups *stages_new(memory *m, const core_engine *setup, pool *p);
int stages_schedule(vllm_v1 *v, step *s); /* 0: the policy itself has to decide, row by row */
void stages_launched(vllm_v1 *v, step *s);
void stages_ended(vllm_v1 *v, const step *s); /* called before the end of a step is accounted */
void stages_spell_out(vllm_v1 *v);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

/* Rows of an asynchronous vLLM V1 engine that verify drafts, with little state except the draws of each. */
#ifndef CAPACITY_DRAFTS_H
#define CAPACITY_DRAFTS_H

#include "engine.h"
#include "vllm_v1.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

draft_group *drafts_new(vllm_v1 *v, const core_engine *setup); /* NULL: these drafts are verified row by row */
int drafts_schedule(vllm_v1 *v, step *s);                      /* 0: the policy itself has to decide, row by row */
int drafts_update(vllm_v1 *v, step *s);                        /* 0: the policy itself has to decide */
void drafts_spell_out(vllm_v1 *v);
void take_quiet_drafts(engine *e); /* run steps of members only */

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

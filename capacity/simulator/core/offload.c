/* Stub until the real one is merged. */
#include "vllm_v1.h"
policy *offloading_v1_new(memory *m, const core_engine *setup, pool *p, const core_requests *requests)
{
    (void)setup, (void)p, (void)requests;
    fail(m, BAD_INPUT, "offload is not there yet");
}
i64 offloading_tier_use(const policy *p, core_tier_use *uses) { (void)p, (void)uses; return 0; }

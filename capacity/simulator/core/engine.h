/* The engine loop, and the fleet that it runs in. */
#ifndef CAPACITY_ENGINE_H
#define CAPACITY_ENGINE_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

#define STEP_FACTORS 4096

enum { MAIL_CANCEL, MAIL_RELEASE_KEPT, MAIL_LOADED, MAIL_UNLOAD, MAIL_WANT_LOAD };

typedef struct {
    i64 kind, request;
    sequence *cancelled;
} mail;

typedef struct {
    i64 request;
    table table;
} kept_kv;

typedef struct {
    sequence *sequence;
    i64 tokens;
    int begun;
} load;

typedef struct {
    i64 gap_ps, count;
} gap_entry;

/* Processes of the front end, through which requests and tokens pass (front_end.c). */
typedef struct {
    i64 at_ps, order, request;
    int waits; /* waits for its turn, which begins then */
} tokenized;
typedef struct {
    memory *memory;
    i64 num_processes;
    i64 *free_ps; /* by process: the instant at which it has done all its work */
    i64 *turn_ends_ps, *last_taken_in_ps; /* also by process */
    i64 request_ps, message_ps;
    double input_token_s;
    int tokenizes; /* requests come through it */
    VEC(tokenized) coming; /* a heap: incoming requests, the next one first */
    i64 taken_in;
} front_end;

struct engine {
    fleet *fleet;
    memory *memory;
    i64 number, key, now_ps;
    i64 later_key; /* next action after the arrivals that `key` stands for, if that is an ARRIVE */
    core_engine setup;
    policy *policy;
    i64 num_pools;
    pool **pools; /* one a rank */
    policy **policies;
    policy *regular_v1; /* policy whose steps quiet.c may run, or NULL */
    policy *drafted_v1; /* policy whose steps drafts.c may run, or NULL */
    i64 num_blocks;
    /* steps in flight, oldest first, and the one that ends next */
    step **in_flight;
    i64 num_in_flight;
    i64 calls; /* of the policy's `schedule` */
    i64 passed; /* empty steps of vLLM's queue that the last ended step was before */
    step *ending, *spare_steps;
    i64 *stage_free_ps;
    shape *shapes; /* one a rank */
    /* scheduled arrivals */
    const i64 *fed_requests;
    i64 *fed_instants;
    i64 fed_count, fed_next;
    i64 loop_count, loop_delay_ps; /* of a closed loop: its requests, and from the end of one to the arrival of another */
    /* actions that take effect at the next decision */
    VEC(mail) mail;
    VEC(load) loads;
    VEC(kept_kv) kept;
    sequence *spare_sequences;
    size_t blank_bytes; /* size of a reused sequence, hidden from the compiler, whose own loop is slower */
    i64 unfinished; /* requests in the engine, including those that wait for KV */
    int alive, endless, paused;
    i64 without_rows, in_vain;
    front_end front_end;
    core_state sums;
    gaps *gaps;
    work *work;
    VEC(i64) log;
};

struct fleet {
    memory memory;
    core_requests requests;
    core_columns columns;
    int routed;
    VEC(engine *) engines;
    VEC(i64) heap; /* numbers of engines, the least key first */
    VEC(i64) place; /* of each engine in the heap */
    VEC(core_event) events;
    core_turn *turn; /* the caller's */
    i64 events_told; /* events that the caller has seen; the next call drops them */
    i64 kinds_waiting; /* kinds of the other events, as bits */
    sequence **inside; /* by request: its engine, in a routed fleet */
    gaps *gaps;
    VEC(gap_entry) step_gaps;
    i64 steps; /* settled, of all engines; rows count as well */
    i64 bound, last_step; /* limit of the current advance: an engine continues by itself below this key */
};

engine *engine_new(fleet *f, const core_engine *setup, i64 number, i64 now_ps);
void engine_proceed(engine *e); /* do what is due at e->key */
int engine_receive(engine *e, i64 request, i64 at_ps);
void engine_receive_fed(engine *e, i64 until_ps);
void engine_receive_tokenized(engine *e, i64 until_ps);
void engine_expect_arrivals(engine *e);
step *engine_new_step(engine *e); /* an empty one */
void engine_spare_step(engine *e, step *s);
void time_step(engine *e, step *s, i64 now_ps); /* compute how long it lasts, and its start and end */
void engine_check_end(engine *e, const step *s); /* simulated time has an end */
void take_quiet_steps(engine *e); /* quiet.c */
void engine_wake(engine *e, i64 at_ps); /* something arrived: decide, unless a step has to end first */
i64 engine_kv_used(const engine *e);
sequence *engine_new_sequence(engine *e, i64 request);
void engine_recycle(engine *e, sequence *r);
void fleet_tell(fleet *f, i64 kind, const engine *e, i64 request, i64 at_ps, i64 value);

/* front_end.c */
void front_end_init(front_end *f, memory *m, const core_engine *setup);
void front_end_take_in(front_end *f, i64 request, i64 prompt_tokens, i64 now_ps);
i64 front_end_send(front_end *f, i64 request, i64 now_ps);
i64 front_end_due_ps(const front_end *f);
i64 front_end_pop(front_end *f); /* -1: it waits for the end of its turn, which begins */
int front_end_drop(front_end *f, i64 request);

/* ledger.c */
void ledger_scheduled(engine *e, step *s, i64 now_ps);
void ledger_expect(const engine *e, const step *s); /* the end of a step that is launched */
void ledger_settled(engine *e, step *s, i64 now_ps);
void ledger_use_kv(engine *e, i64 duration_ps);
void ledger_finished(engine *e, sequence *r, i64 now_ps);
void log_step(engine *e, const step *s);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif

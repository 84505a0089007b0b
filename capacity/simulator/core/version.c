/* Which sources this library was compiled from, as build.py says. */
#include "core.h"

#ifndef CORE_VERSION
#define CORE_VERSION "unknown"
#endif

const char *core_version(void);

const char *core_version(void)
{
    return CORE_VERSION;
}

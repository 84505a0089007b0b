/* Version of the sources from which this library was compiled; see build.py. */
#include "core.h"

#ifndef CORE_VERSION
#define CORE_VERSION "unknown"
#endif

const char *core_version(void);

const char *core_version(void)
{
    return CORE_VERSION;
}

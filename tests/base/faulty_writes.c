/* Preloaded: writes, syncs and renames below a folder are counted, and one of them fails with a full disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

long faults_seen, failing_fault; /* failing: counted from 1; 0: none */
char fault_folder[PATH_MAX];

static int fails(const char *path)
{
    int inside = path[0] != '/' || !strncmp(path, fault_folder, strlen(fault_folder)); /* it is the working folder */
    if (!fault_folder[0] || !inside || ++faults_seen != failing_fault)
        return 0;
    errno = ENOSPC;
    return 1;
}

static int fails_at(int file)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return fails(path);
}

#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int file, const void *bytes, size_t count)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fails_at(file)) { /* as on a disk that fills up: a part of the bytes is there */
        real(file, bytes, count / 2);
        errno = ENOSPC;
        return -1;
    }
    return real(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return fails_at(file) ? -1 : real(file, bytes, count, offset);
}

int fsync(int file)
{
    REAL(int, "fsync", int);
    return fails_at(file) ? -1 : real(file);
}

int fdatasync(int file)
{
    REAL(int, "fdatasync", int);
    return fails_at(file) ? -1 : real(file);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    return fails(to) ? -1 : real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    return fails(to) ? -1 : real(from_folder, from, to_folder, to);
}

"""A wrong wall clock for one process: a small library, loaded before all others, that shifts what the kernel says.

The monotonic clock stays what it is, as it does on a host whose date is set.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SHIFT = "CHAOS_CLOCK_SHIFT"
"""The variable that holds the shift, in seconds."""

SOURCE = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t shift(void) {
    const char *text = getenv("CHAOS_CLOCK_SHIFT");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


def clock_library(folder: Path) -> str:
    """Make the library in a folder and return its path; an empty text where no C compiler makes one."""
    library = folder / "clock.so"
    if library.exists():
        return str(library)
    compiler = shutil.which("cc")
    if compiler is None:
        return ""
    source = folder / "clock.c"
    source.write_text(SOURCE)
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(words, capture_output=True, check=False)
    return "" if done.returncode else str(library)

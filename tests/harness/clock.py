"""A wall clock that a test steps, for one server. Needs Linux and a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

# Preloaded into a server. libfaketime would do, but it and jemalloc wait for each other at the start.
CLOCK_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *shared;

static long ahead_seconds(void) {
  if (!shared) {
    const char *path = getenv("SLOCK_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED) return 0;
    shared = page;
  }
  return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead_seconds();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  int failed = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *copy) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (copy) *copy = exact.tv_sec;
  return exact.tv_sec;
}

/* Valkey binds a module to its own libraries first: it would have the true clock. */
void *dlopen(const char *path, int flags) {
  void *(*original)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  return original(path, flags & ~RTLD_DEEPBIND);
}
"""


class Clock:
    """For servers with `environment=clock.environment`. The monotonic clock goes on as it is."""

    def __init__(self, directory: Path, *, ahead: int = 0) -> None:
        library, self._file = directory / "clock.so", directory / f"clock{time.monotonic_ns()}"
        if not library.exists():
            compiler = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
            subprocess.run(compiler, input=CLOCK_SOURCE, text=True, check=True)
        self.step(ahead)
        self.environment = {"LD_PRELOAD": str(library), "SLOCK_TEST_CLOCK": str(self._file)}

    def step(self, ahead: int) -> None:
        """From now on the clock is so many seconds ahead of the true time."""
        # In place, and in one write: servers have the file mapped.
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, ahead.to_bytes(8, sys.byteorder, signed=True), 0)
        os.close(file)

"""Steps of a process's wall clock: a small library, preloaded, that adds an offset to what the system's clock says.

Only the wall clock (``CLOCK_REALTIME``) is moved, as a bad time server would move it; the monotonic clock goes on. The
offset stands in a file that the harness may change at any time. Works for every program that asks libc, so also for
Postgres, whose clock the leases are reckoned by.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

VARIABLE = "CUPILOT_TEST_CLOCK"

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const double *offset;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CUPILOT_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(0, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) offset = page;
}

static void shift(struct timespec *t) {
  if (!offset) return;
  t->tv_sec += (time_t)*offset;
}

int clock_gettime(clockid_t id, struct timespec *t) {
  int code = (int)syscall(SYS_clock_gettime, id, t);
  if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) shift(t);
  return code;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
"""


class Clock:
    """The clock of the processes that are started with its :attr:`environment`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.clock"
        self.step(0.0)
        self._library = folder / "clock.so"
        if not self._library.exists():
            source = folder / "clock.c"
            source.write_text(SOURCE)
            command = ["g++", "-x", "c", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
        folder.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to live by this clock."""
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file)}

    def step(self, seconds: float) -> None:
        """Let the wall clock be off by so much from now on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

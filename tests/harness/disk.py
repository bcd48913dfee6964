"""A disk of which stays what was synced, when a test cuts the power. Needs Linux and a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Preloaded into a server. Nothing is synced in truth, which takes no time; the length is noted.
DISK_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int note(int file) {
  char link[64], path[4096 + 8];
  struct stat status;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, 4096);
  if (length < 0 || fstat(file, &status)) return -1;
  if (!S_ISREG(status.st_mode)) return 0;
  snprintf(path + length, 8, ".synced");
  int notes = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (notes < 0) return -1;
  long synced = status.st_size;
  ssize_t written = pwrite(notes, &synced, sizeof synced, 0);
  close(notes);
  return written == sizeof synced ? 0 : -1;
}

int fsync(int file) { return note(file); }
int fdatasync(int file) { return note(file); }
"""


class Disk:
    """For servers with `environment=disk.environment`."""

    def __init__(self, directory: Path) -> None:
        library = directory / "disk.so"
        compiler = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(compiler, input=DISK_SOURCE, text=True, check=True)
        self.environment = {"LD_PRELOAD": str(library)}

    def loses(self, directory: Path) -> dict[Path, int]:
        """The logs there that are longer than what was synced, and how long that is."""
        synced = {}
        for file in directory.rglob("*.incr.aof"):
            noted = file.with_name(file.name + ".synced")
            length = int.from_bytes(noted.read_bytes(), sys.byteorder) if noted.exists() else 0
            if file.stat().st_size > length:
                synced[file] = length
        return synced

    def lose(self, directory: Path) -> None:
        """The power is cut; the server that wrote there has been killed."""
        for file, length in self.loses(directory).items():
            os.truncate(file, length)

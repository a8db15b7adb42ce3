"""test/chaos/history.py: the clock, and files with one JSON object a line

Each writer has its own file, so no writer waits for another.
"""

import glob
import json
import time


def now_us():
    """CLOCK_BOOTTIME, as chaos_clock() in the servers."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Writer:
    def __init__(self, path):
        self.file = open(path, "a", buffering=1)

    def write(self, record):
        self.file.write(json.dumps(record) + "\n")


def read(pattern):
    records = []
    for path in sorted(glob.glob(pattern)):
        with open(path) as f:
            records += [json.loads(line) for line in f if line.endswith("\n")]
    return records

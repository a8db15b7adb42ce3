"""test/chaos/stalls.py: records when this machine did not run us

    python3 stalls.py FILE

This process wakes up every 10 ms.  If the process is late by 40 ms, other processes were
late as well.  Then a node's late answer means nothing: the broker doubts nodes after 50 ms.
The proxy watches itself in the same way.
"""

import sys
import time

from history import Writer, now_us


class Stalls:
    PAUSE_S = 0.01
    LATE_US = 40000

    def __init__(self):
        self.history = None
        self.last = now_us()

    def write_to(self, path):
        self.history = Writer(path)

    def look(self):
        now = now_us()
        if self.history and now - self.last > self.LATE_US:
            self.history.write({"kind": "stall", "target": "machine", "t0": self.last, "t1": now})
        self.last = now


if __name__ == "__main__":
    stalls = Stalls()
    stalls.write_to(sys.argv[1])
    while True:
        time.sleep(stalls.PAUSE_S)
        stalls.look()

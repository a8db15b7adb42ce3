"""test/chaos/stalls.py: writes down when this machine did not run us

    python3 stalls.py FILE

A process that wants to wake up each 10 ms.  When it is late by 40 ms, others were
late as well, and a node that did not answer in time then says nothing: nodes are
doubted after 50 ms.  The proxy looks after itself in the same way.
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

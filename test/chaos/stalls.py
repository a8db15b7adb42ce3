"""test/chaos/stalls.py: writes down when this machine did not run us

    python3 stalls.py FILE

A process that wants to wake up each 20 ms.  When it is late by 150 ms, others were
late as well, and a lease of two seconds that was lost then says nothing.
"""

import sys
import time

from history import Writer, now_us

history = Writer(sys.argv[1])
last = now_us()
while True:
    time.sleep(0.02)
    now = now_us()
    if now - last > 150000:
        history.write({"kind": "stall", "target": "machine", "t0": last, "t1": now})
    last = now

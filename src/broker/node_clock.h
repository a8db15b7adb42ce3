/*
 * node_clock.h
 *		The clocks of nodes, compared with this host's clocks.
 */
#ifndef REDLOCK_NODE_CLOCK_H
#define REDLOCK_NODE_CLOCK_H

/*
 * Notes the wall clock of a node, asked and answered at these redlock_clock_us() times.  Publishes
 * NodeStatus.clock_ahead_us and clock_faster_ppm.  Logs a clock that runs too fast.
 */
extern void node_clock_note(int node, int64 time_ms, int64 asked_us, int64 now_us);

#endif /* REDLOCK_NODE_CLOCK_H */

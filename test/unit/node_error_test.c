/*
 * node_error_test.c
 *		Unit tests of the classes of a node's errors, src/protocol/node_error.c.
 *
 * Protects from: an error counted in the wrong column of redlock_stat_nodes.
 */
#include "protocol/node_error.h"
#include "tap.h"

static void
test_texts(void)
{
	ok(node_error_class("no answer within 50 ms (connecting)", true, false) == NODE_ERROR_TIMEOUT,
	   "a timeout while connecting is a timeout");
	ok(node_error_class("no answer within 12 ms; connecting again", false, false) ==
		   NODE_ERROR_TIMEOUT,
	   "a replaced connection is a timeout");
	ok(node_error_class("could not connect: Connection refused", true, false) ==
		   NODE_ERROR_CONNECTION,
	   "a refused connection is no refusal by the node");
	ok(node_error_class("it closed the connection", false, false) == NODE_ERROR_CONNECTION,
	   "a closed connection");
	ok(node_error_class("OOM command not allowed", false, false) == NODE_ERROR_MEMORY,
	   "a full node");
	ok(node_error_class("NOPERM this user has no permissions", false, false) == NODE_ERROR_REFUSAL,
	   "a missing right");
	ok(node_error_class("WRONGPASS invalid username-password pair", false, true) ==
		   NODE_ERROR_REFUSAL,
	   "a wrong password");
}

static void
test_states(void)
{
	ok(node_error_class("it is a replica", false, true) == NODE_ERROR_REFUSAL, "an unfit node");
	ok(node_error_class("Name or service not known", true, false) == NODE_ERROR_CONNECTION,
	   "no address");
	ok(node_error_class("MISCONF Errors writing to the AOF file", false, false) == NODE_ERROR_OTHER,
	   "a failed write to disk");
	ok(node_error_class("", false, false) == NODE_ERROR_OTHER, "no text");
}

int
main(void)
{
	test_texts();
	test_states();
	return tap_done();
}

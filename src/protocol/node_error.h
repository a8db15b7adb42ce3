/*
 * node_error.h
 *		Classes of the errors of a node, for the statistics.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_NODE_ERROR_H
#define REDLOCK_NODE_ERROR_H

#include <stdbool.h>

typedef enum NodeError
{
	NODE_ERROR_TIMEOUT,    /* no answer in time */
	NODE_ERROR_CONNECTION, /* no address, no connection, or a broken connection */
	NODE_ERROR_REFUSAL,    /* wrong password, missing rights, or a node that is unfit to vote */
	NODE_ERROR_MEMORY,     /* the node is full */
	NODE_ERROR_OTHER,
	NODE_ERRORS /* number of classes */
} NodeError;

/*
 * Returns the class of an error, by the text of the node or of the broker.  connecting: the broker
 * was looking for the address, or was opening the socket.  refused: the broker lets the node take
 * no commands from now on.
 */
extern NodeError node_error_class(const char *error, bool connecting, bool refused);

#endif /* REDLOCK_NODE_ERROR_H */

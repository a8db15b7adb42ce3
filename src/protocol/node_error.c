/*
 * node_error.c
 *		Classes of the errors of a node; see node_error.h.
 */
#include "protocol/node_error.h"

#include <string.h>

/* by the beginning of the error */
static const struct
{
	const char *error;
	NodeError class;
} classes[] = {
	{"no answer", NODE_ERROR_TIMEOUT},
	{"OOM", NODE_ERROR_MEMORY},
	{"could not ", NODE_ERROR_CONNECTION},
	{"it closed the connection", NODE_ERROR_CONNECTION},
	{"ERR max number of clients", NODE_ERROR_CONNECTION},
	{"WRONGPASS", NODE_ERROR_REFUSAL},
	{"NOAUTH", NODE_ERROR_REFUSAL},
	{"NOPERM", NODE_ERROR_REFUSAL},
	{"DENIED", NODE_ERROR_REFUSAL},
	{"READONLY", NODE_ERROR_REFUSAL},
	{"ERR invalid password", NODE_ERROR_REFUSAL},
	{"ERR AUTH <password>", NODE_ERROR_REFUSAL},
	{"ERR ACL failure", NODE_ERROR_REFUSAL},
	{"ERR The user executing the script", NODE_ERROR_REFUSAL},
};

NodeError
node_error_class(const char *error, bool connecting, bool refused)
{
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
	{
		size_t len = strlen(classes[i].error);

		if (strlen(error) >= len && memcmp(error, classes[i].error, len) == 0)
			return classes[i].class;
	}
	if (refused)
		return NODE_ERROR_REFUSAL;
	return connecting ? NODE_ERROR_CONNECTION : NODE_ERROR_OTHER;
}

/*
 * lua.c
 *		The names of the commands; see lua.h.  The scripts are in lua_text.c.
 */
#include "protocol/lua.h"

const char *const lua_command_name[CORE_OP_RELEASE + 1] = {
	[CORE_OP_ACQUIRE] = "acquire",
	[CORE_OP_CONFIRM] = "confirm",
	[CORE_OP_RENEW] = "renew",
	[CORE_OP_RELEASE] = "release",
};

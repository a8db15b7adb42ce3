/*
 * lua.c
 *		The names of the commands; see lua.h.  The scripts are in lua_text.c.
 */
#include "protocol/lua.h"

const char *const lua_command_name[2][CORE_OP_RELEASE + 1] = {
	{
		[CORE_OP_ACQUIRE] = "acquire",
		[CORE_OP_CONFIRM] = "confirm",
		[CORE_OP_RENEW] = "renew",
		[CORE_OP_RELEASE] = "release",
	},
	{
		[CORE_OP_ACQUIRE] = "acquire shared",
		[CORE_OP_CONFIRM] = "confirm shared",
		[CORE_OP_RENEW] = "renew shared",
		[CORE_OP_RELEASE] = "release shared",
	},
};

/*
 * no_message.c
 *		An extension that raises an error without a message.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(no_message);

Datum
no_message(PG_FUNCTION_ARGS)
{
	ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION)));
}

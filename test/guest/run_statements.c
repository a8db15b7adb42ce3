/*
 * run_statements.c
 *		A procedure in a language other than SQL and PL/pgSQL.
 *
 * run_statements(text, text, text, text) executes each text; COMMIT commits, and "file PATH" makes
 * a file: an effect that no hook of PostgreSQL sees.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_statements);

static void run(const char *statement);

Datum
run_statements(PG_FUNCTION_ARGS)
{
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect_ext failed");
	for (int i = 0; i < PG_NARGS(); i++)
		run(text_to_cstring(PG_GETARG_TEXT_PP(i)));
	SPI_finish();
	PG_RETURN_VOID();
}

static void
run(const char *statement)
{
	int fd;

	if (strcmp(statement, "COMMIT") == 0)
		SPI_commit();
	else if (strncmp(statement, "file ", 5) == 0)
	{
		fd = open(statement + 5, O_CREAT | O_WRONLY, 0600);
		if (fd < 0)
			elog(ERROR, "could not create the file: %m");
		close(fd);
	}
	else if (SPI_execute(statement, false, 0) < 0)
		elog(ERROR, "SPI_execute failed");
}

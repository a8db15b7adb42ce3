/*
 * tls_file.c
 *		The files of redlock.tls_*; see tls_file.h.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "shared/tls_file.h"

/*
 * A bundle of authorities has some hundred kilobytes.  OpenSSL takes seconds for some megabytes,
 * and the broker would renew no lease in these seconds.
 */
#define SIZE_MAX_MB 1

static const char *key_problem(const struct stat *file, const char **hint);
static bool has_block(FILE *file, const char *kind);

const char *
tls_file_problem(TlsFile what, const char *path, const char **hint)
{
	static char text[96];
	const char *problem = NULL;
	struct stat seen;
	FILE *file;

	*hint = NULL;
	if (stat(path, &seen) != 0)
	{
		snprintf(text, sizeof(text), "could not be read: %.60s", strerror(errno));
		return text;
	}
	if (!S_ISREG(seen.st_mode))
		return S_ISDIR(seen.st_mode) ? "is a directory" : "is not a regular file";
	if (seen.st_size > SIZE_MAX_MB * 1024 * 1024)
		return "is too large";
	if (what == TLS_KEY_FILE)
		problem = key_problem(&seen, hint);
	if (problem != NULL)
		return problem;

	file = fopen(path, "r");
	if (file == NULL)
	{
		snprintf(text, sizeof(text), "could not be read: %.60s", strerror(errno));
		return text;
	}
	if (what != TLS_KEY_FILE)
		problem = has_block(file, "CERTIFICATE-----") ? NULL : "has no certificate in PEM format";
	else if (!has_block(file, "PRIVATE KEY-----"))
		problem = "has no private key in PEM format";
	fclose(file);
	return problem;
}

/* PostgreSQL refuses its own key file for the same reasons. */
static const char *
key_problem(const struct stat *file, const char **hint)
{
	bool of_root = file->st_uid == 0;

	if (file->st_uid != geteuid() && !of_root)
	{
		*hint = "Let the database user or root own the file.";
		return "is a private key that is owned by neither the database user nor root";
	}
	if (file->st_mode & (of_root ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO))
	{
		*hint = "Set the permissions to u=rw (0600) or less if the database user owns the file, or "
				"to u=rw,g=r (0640) or less if root owns the file.";
		return "is a private key that others may read or write";
	}
	return NULL;
}

static bool
has_block(FILE *file, const char *kind)
{
	char line[128];

	while (fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, "-----BEGIN ", 11) == 0 && strstr(line, kind) != NULL)
			return true;
	return false;
}

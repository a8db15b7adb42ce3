/*
 * lists_file.c
 *		The two lists of nodes in force, on disk; see lists_file.h.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"

#include "broker/lists_file.h"

/* pg_basebackup leaves out this directory. */
#define LISTS_FILE PG_STAT_TMP_DIR "/redlock_pg.lists"

/* The file.  A file of another build is rejected. */
typedef struct Contents
{
	uint32 size; /* of the whole file */
	NodeUrls now;
	NodeUrls next;
	pg_crc32c crc; /* of all fields above */
} Contents;

static Contents contents; /* what the file has, if known; or zero */

static pg_crc32c crc_of(const Contents *of);
static void complain(const char *what);
static void complain_unused(const char *why);

bool
lists_file_write(const NodeUrls *now, const NodeUrls *next)
{
	static Contents wanted;
	FILE *file;
	bool written;

	wanted.size = sizeof(wanted);
	wanted.now = *now;
	wanted.next = *next;
	wanted.crc = crc_of(&wanted);
	if (memcmp(&wanted, &contents, sizeof(wanted)) == 0)
		return true;

	file = AllocateFile(LISTS_FILE ".new", PG_BINARY_W);
	if (file == NULL)
	{
		complain("create");
		return false;
	}
	written = fchmod(fileno(file), S_IRUSR | S_IWUSR) == 0 &&
			  fwrite(&wanted, sizeof(wanted), 1, file) == 1;
	written = FreeFile(file) == 0 && written;
	if (!written)
	{
		complain("write");
		(void) unlink(LISTS_FILE ".new");
		return false;
	}
	if (durable_rename(LISTS_FILE ".new", LISTS_FILE, LOG) != 0)
		return false;
	contents = wanted;
	return true;
}

void
lists_file_remove(void)
{
	memset(&contents, 0, sizeof(contents));
	if (access(LISTS_FILE, F_OK) == 0)
		(void) durable_unlink(LISTS_FILE, LOG);
}

bool
lists_file_read(NodeUrls *now, NodeUrls *next)
{
	FILE *file;
	bool whole;

	(void) unlink(LISTS_FILE ".new"); /* left by a crash */
	file = AllocateFile(LISTS_FILE, PG_BINARY_R);
	if (file == NULL)
	{
		if (errno != ENOENT)
			complain_unused(psprintf("The file can't be read: %m."));
		return false;
	}
	whole = fread(&contents, sizeof(contents), 1, file) == 1 && contents.size == sizeof(contents) &&
			EQ_CRC32C(contents.crc, crc_of(&contents)) && contents.now.count > 0 &&
			contents.now.count <= URL_NODES_MAX && contents.next.count > 0 &&
			contents.next.count <= URL_NODES_MAX;
	(void) FreeFile(file);
	if (!whole)
	{
		memset(&contents, 0, sizeof(contents));
		complain_unused("The file is damaged, or of another version.");
		return false;
	}
	*now = contents.now;
	*next = contents.next;
	return true;
}

static pg_crc32c
crc_of(const Contents *of)
{
	pg_crc32c crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, of, offsetof(Contents, crc));
	FIN_CRC32C(crc);
	return crc;
}

static void
complain_unused(const char *why)
{
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIG_FILE_ERROR), errmsg("redlock file \"%s\" is not used", LISTS_FILE),
		 errdetail(
			 "The file has the two lists of nodes that were in force when the server stopped. %s",
			 why),
		 errhint("If any host still uses only the first of the two lists, stop this server, and "
				 "start it with both lists in redlock.nodes and redlock.nodes_next.")));
}

static void
complain(const char *what)
{
	ereport(LOG, (errcode_for_file_access(),
				  errmsg("could not %s redlock file \"%s\": %m", what, LISTS_FILE)));
}

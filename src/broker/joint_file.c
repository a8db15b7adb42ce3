/*
 * joint_file.c
 *		The joint lists, on disk; see joint_file.h.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "port/pg_crc32c.h"
#include "storage/fd.h"

#include "broker/joint_file.h"

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
joint_file_write(const NodeUrls *now, const NodeUrls *next)
{
	static Contents updated;
	FILE *file;
	bool written;

	updated.size = sizeof(updated);
	updated.now = *now;
	updated.next = *next;
	updated.crc = crc_of(&updated);
	if (memcmp(&updated, &contents, sizeof(updated)) == 0)
		return true;

	file = AllocateFile(JOINT_FILE ".new", PG_BINARY_W);
	if (file == NULL)
	{
		complain("create");
		return false;
	}
	written = fchmod(fileno(file), S_IRUSR | S_IWUSR) == 0 &&
			  fwrite(&updated, sizeof(updated), 1, file) == 1;
	written = FreeFile(file) == 0 && written;
	if (!written)
	{
		complain("write");
		(void) unlink(JOINT_FILE ".new");
		return false;
	}
	if (durable_rename(JOINT_FILE ".new", JOINT_FILE, LOG) != 0)
		return false;
	contents = updated;
	return true;
}

void
joint_file_remove(void)
{
	memset(&contents, 0, sizeof(contents));
	if (access(JOINT_FILE, F_OK) == 0)
		(void) durable_unlink(JOINT_FILE, LOG);
}

bool
joint_file_read(NodeUrls *now, NodeUrls *next)
{
	FILE *file;
	bool whole;

	memset(&contents, 0, sizeof(contents));
	(void) unlink(JOINT_FILE ".new"); /* left by a crash */
	file = AllocateFile(JOINT_FILE, PG_BINARY_R);
	if (file == NULL)
	{
		if (errno != ENOENT)
			complain_unused(psprintf("The file can't be read: %m."));
		return false;
	}
	whole = fread(&contents, sizeof(contents), 1, file) == 1 && contents.size == sizeof(contents) &&
			EQ_CRC32C(contents.crc, crc_of(&contents)) && url_is_list(&contents.now) &&
			url_is_list(&contents.next);
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
		(errcode(ERRCODE_CONFIG_FILE_ERROR), errmsg("redlock file \"%s\" is not used", JOINT_FILE),
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
				  errmsg("could not %s redlock file \"%s\": %m", what, JOINT_FILE)));
}

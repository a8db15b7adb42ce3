/*
 * extension.h
 *		The schema of the extension in this database, and names of objects for hints.
 */
#ifndef REDLOCK_EXTENSION_H
#define REDLOCK_EXTENSION_H

/* Returns the schema of an extension; InvalidOid if the extension was dropped. */
extern Oid extension_schema(Oid extension);

/*
 * Returns the name of an object of redlock_pg as a statement has to write it: with the schema,
 * unless search_path has the schema; palloc'd.  For hints.
 */
extern char *extension_name(const char *object);

#endif /* REDLOCK_EXTENSION_H */

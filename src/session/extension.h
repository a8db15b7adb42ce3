/*
 * extension.h
 *		The extension in this database: its schema, its tables, and names of objects for hints.
 */
#ifndef REDLOCK_EXTENSION_H
#define REDLOCK_EXTENSION_H

/* Returns the schema of an extension; InvalidOid if the extension was dropped. */
extern Oid extension_schema(Oid extension);

/*
 * Returns the table of redlock_pg with this name in the schema; InvalidOid if there is none.  A
 * role with CREATE on the schema can make an object of the name.  So only a plain table that is a
 * member of the extension counts.
 */
extern Oid extension_table(const char *name, Oid schema);

/*
 * Returns the name of an object of redlock_pg as a statement has to write it: with the schema,
 * unless search_path has the schema; palloc'd.  For hints.
 */
extern char *extension_name(const char *object);

#endif /* REDLOCK_EXTENSION_H */

/*
 * extension.c
 *		The extension in this database; see extension.h.
 *
 * The lookups need no snapshot of the caller: an error may name a function.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "session/extension.h"

/* get_extension_schema is new in a minor release of 16 */
Oid
extension_schema(Oid extension)
{
	Relation catalog = table_open(ExtensionRelationId, AccessShareLock);
	Oid schema = InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple row;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(catalog, ExtensionOidIndexId, true, NULL, 1, &key);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		schema = ((Form_pg_extension) GETSTRUCT(row))->extnamespace;
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return schema;
}

Oid
extension_table(const char *name, Oid schema)
{
	Oid table = get_relname_relid(name, schema);
	Oid extension;

	if (!OidIsValid(table) || get_rel_relkind(table) != RELKIND_RELATION)
		return InvalidOid;
	extension = get_extension_oid("redlock_pg", true);
	if (!OidIsValid(extension) || getExtensionOfObject(RelationRelationId, table) != extension)
		return InvalidOid;
	return table;
}

char *
extension_name(const char *object)
{
	Oid extension = get_extension_oid("redlock_pg", true);
	Oid schema = OidIsValid(extension) ? extension_schema(extension) : InvalidOid;
	const char *name = OidIsValid(schema) ? get_namespace_name(schema) : NULL;

	if (name == NULL || list_member_oid(fetch_search_path(false), schema))
		return pstrdup(object);
	return quote_qualified_identifier(name, object);
}

/*
 * encoding.c
 *		Conversion between UTF-8 and the encoding of this database; see encoding.h.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "session/encoding.h"

static bool is_utf8(int encoding);
static int convert(Oid converter, int from, int to, const char *text, StringInfo converted);

char *
encoding_from_utf8(const char *utf8)
{
	int encoding = GetDatabaseEncoding();
	Oid converter;
	StringInfoData text;

	if (is_utf8(encoding))
		return pstrdup(utf8);
	converter = FindDefaultConversionProc(PG_UTF8, encoding);
	initStringInfo(&text);
	while (*utf8)
	{
		utf8 += convert(converter, PG_UTF8, encoding, utf8, &text);
		/* a character without a counterpart */
		for (int left = pg_utf_mblen((const unsigned char *) utf8); *utf8 && left > 0;
			 left--, utf8++)
			appendStringInfo(&text, IS_HIGHBIT_SET(*utf8) ? "\\x%02x" : "%c",
							 (unsigned char) *utf8);
	}
	return text.data;
}

char *
encoding_of_name(const char *name)
{
	StringInfoData text;

	if (pg_verify_mbstr(GetDatabaseEncoding(), name, strlen(name), true))
		return pstrdup(name);
	initStringInfo(&text);
	for (; *name; name++)
		appendStringInfo(&text, IS_HIGHBIT_SET(*name) ? "\\x%02x" : "%c", (unsigned char) *name);
	return text.data;
}

void
encoding_to_utf8(char *utf8, size_t size, const char *text)
{
	int encoding = GetDatabaseEncoding();
	Oid converter;
	StringInfoData converted;

	if (is_utf8(encoding))
	{
		strlcpy(utf8, text, size);
		return;
	}
	converter = FindDefaultConversionProc(encoding, PG_UTF8);
	initStringInfo(&converted);
	while (*text)
	{
		text += convert(converter, encoding, PG_UTF8, text, &converted);
		if (*text)
			appendStringInfoChar(&converted, *text++);
	}
	strlcpy(utf8, converted.data, size);
	pfree(converted.data);
}

/* SQL_ASCII has no characters: take its bytes for UTF-8. */
static bool
is_utf8(int encoding)
{
	return encoding == PG_UTF8 || encoding == PG_SQL_ASCII;
}

/*
 * Converts up to the first character without a counterpart, and appends the result.  Returns the
 * number of converted bytes of the text.
 */
static int
convert(Oid converter, int from, int to, const char *text, StringInfo converted)
{
	size_t len = strlen(text);
	int size = (int) len * MAX_CONVERSION_GROWTH + 1;
	unsigned char *buffer;
	int done;

	if (!OidIsValid(converter))
		return 0;
	buffer = palloc(size);
	done = pg_do_encoding_conversion_buf(converter, from, to, (unsigned char *) text, (int) len,
										 buffer, size, true);
	if (done > 0)
		appendStringInfoString(converted, (char *) buffer);
	pfree(buffer);
	return done;
}

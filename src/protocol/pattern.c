/*
 * pattern.c
 *		Patterns of names of locks; see pattern.h.
 */
#include "protocol/pattern.h"

#include <string.h>

typedef enum PartKind
{
	PART_END,
	PART_ANY,  /* '%' */
	PART_ONE,  /* '_' */
	PART_BYTE, /* this byte */
	PART_FAULT /* '\' at the end */
} PartKind;

/* One element of a pattern. */
typedef struct Part
{
	PartKind kind;
	char byte;
	const char *next; /* the rest of the pattern */
} Part;

static Part
read_part(const char *pattern)
{
	switch (*pattern)
	{
		case '\0':
			return (Part){PART_END, 0, pattern};
		case '%':
			return (Part){PART_ANY, 0, pattern + 1};
		case '_':
			return (Part){PART_ONE, 0, pattern + 1};
		case '\\':
			if (pattern[1] == '\0')
				return (Part){PART_FAULT, 0, pattern + 1};
			return (Part){PART_BYTE, pattern[1], pattern + 2};
		default:
			return (Part){PART_BYTE, *pattern, pattern + 1};
	}
}

/* Returns the start of the next character. */
static const char *
after_character(const char *text)
{
	do
		text++;
	while ((*text & 0xc0) == 0x80);
	return text;
}

PatternFault
pattern_check(const char *pattern, size_t name_max)
{
	size_t shortest = 0; /* bytes of the shortest name that matches */
	Part first = read_part(pattern);
	Part last = {PART_END, 0, pattern};

	if (first.kind == PART_END)
		return PATTERN_EMPTY;
	if (strlen(pattern) > PATTERN_MAX)
		return PATTERN_LONG;
	for (Part part = first; part.kind != PART_END; part = read_part(part.next))
	{
		if (part.kind == PART_FAULT)
			return PATTERN_ENDS_IN_ESCAPE;
		if (part.kind != PART_ANY)
			shortest++;
		last = part;
	}
	if (shortest > name_max)
		return PATTERN_LONG_NAMES;
	if (first.kind == PART_BYTE && last.kind == PART_BYTE &&
		(((first.byte == '{' || first.byte == '[') && last.byte == '}') ||
		 (first.byte == '(' && last.byte == ')')))
		return PATTERN_LISTS;
	return PATTERN_GOOD;
}

/*
 * After a mismatch the last '%' takes one more character.  Earlier '%' need no second try: the
 * parts behind them have matched at the first possible place.
 */
bool
pattern_matches(const char *pattern, const char *name)
{
	const char *after_any = NULL; /* the pattern after the last '%' */
	const char *tried = NULL;     /* the name from where that part was tried */

	for (;;)
	{
		Part part = read_part(pattern);

		switch (part.kind)
		{
			case PART_ANY:
				pattern = after_any = part.next;
				tried = name;
				continue;
			case PART_ONE:
				if (*name == '\0')
					return false;
				pattern = part.next;
				name = after_character(name);
				continue;
			case PART_BYTE:
				if (*name == '\0')
					return false;
				if (*name != part.byte)
					break;
				pattern = part.next;
				name++;
				continue;
			case PART_END:
				if (*name == '\0')
					return true;
				break;
			case PART_FAULT:
				return false;
		}
		if (after_any == NULL)
			return false;
		tried = after_character(tried);
		name = tried;
		pattern = after_any;
	}
}

void
pattern_of_name(char *out, const char *name)
{
	for (; *name != '\0'; name++)
	{
		if (*name == '%' || *name == '_' || *name == '\\')
			*out++ = '\\';
		*out++ = *name;
	}
	*out = '\0';
}

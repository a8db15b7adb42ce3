/*
 * text.c
 *		Texts from strangers; see text.h.
 */
#include <string.h>

#include "shared/text.h"

const unsigned char *
text_find_control(const char *utf8)
{
	for (const unsigned char *at = (const unsigned char *) utf8; *at; at++)
		if (*at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f))
			return at;
	return NULL;
}

size_t
text_utf8_len(const char *text, size_t len)
{
	const unsigned char *at = (const unsigned char *) text;
	/* bounds of the second byte exclude overlong forms and code points that are no characters */
	unsigned char least = 0x80;
	unsigned char most = 0xbf;
	size_t size;

	if (len == 0 || *at < 0x20 || *at == 0x7f)
		return 0;
	if (*at < 0x80)
		return 1;
	if (*at < 0xc2 || *at > 0xf4)
		return 0;
	size = *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
	if (*at == 0xc2 || *at == 0xe0)
		least = 0xa0; /* after C2, less is a control character */
	else if (*at == 0xf0)
		least = 0x90;
	else if (*at == 0xed)
		most = 0x9f; /* no surrogates */
	else if (*at == 0xf4)
		most = 0x8f;
	if (len < size || at[1] < least || at[1] > most)
		return 0;
	for (size_t i = 2; i < size; i++)
		if (at[i] < 0x80 || at[i] > 0xbf)
			return 0;
	return size;
}

void
text_to_utf8(char *out, size_t size, const char *from, size_t len)
{
	const char *end = from + len;
	size_t n = 0;

	while (from < end)
	{
		size_t whole = text_utf8_len(from, end - from);
		size_t wanted = whole > 0 ? whole : 1;

		if (n + wanted >= size)
			break;
		if (whole > 0)
			memcpy(out + n, from, whole);
		else
			out[n] = '?';
		n += wanted;
		from += wanted;
	}
	out[n] = '\0';
}

void
text_to_printable(char *out, size_t size, const char *from, size_t len)
{
	size_t n = len < size - 1 ? len : size - 1;

	for (size_t i = 0; i < n; i++)
		out[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	out[n] = '\0';
}

void
text_of_node(char *out, size_t size, const char *from, size_t len)
{
	/* Redis 6 writes the place before the error, later versions after the error */
	static const char in_front[] = "ERR Error running script (call to f_";
	char text[512];
	char *at = text;
	char *end;

	text_to_printable(text, sizeof(text), from, len);
	if (strncmp(text, in_front, strlen(in_front)) == 0)
		for (char *next = text; (next = strchr(next, ':')) != NULL; next++)
			if (next[1] == ' ')
			{
				/* after the line number comes the error, or the place again */
				if (next[2] == '-' || (next[2] >= 'A' && next[2] <= 'Z'))
				{
					at = next + 2 + (next[2] == '-');
					break;
				}
			}
	end = strstr(at, " script: ");
	if (end != NULL && strstr(end, ", on @user_script:") != NULL)
		*end = '\0';
	end = strstr(at, ". ");
	if (end != NULL)
		*end = '\0';
	for (end = at + strlen(at); end > at && (end[-1] == '.' || end[-1] == ' '); end--)
		end[-1] = '\0';
	text_to_printable(out, size, at, strlen(at));
}

/*
 * text.c
 *		Texts of strangers that people will see; see text.h.
 */
#include "shared/text.h"

const unsigned char *
text_find_control(const char *utf8)
{
	for (const unsigned char *at = (const unsigned char *) utf8; *at; at++)
		if (*at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f))
			return at;
	return NULL;
}

void
text_to_printable(char *out, size_t size, const char *from, size_t len)
{
	size_t n = len < size - 1 ? len : size - 1;

	for (size_t i = 0; i < n; i++)
		out[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	out[n] = '\0';
}

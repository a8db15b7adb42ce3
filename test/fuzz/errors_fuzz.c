/*
 * errors_fuzz.c
 *		Texts of nodes: the class of an error, by src/protocol/node_error.c, and texts that are made
 *		fit for people, by src/shared/text.c.
 *
 * Claims: each text fits, ends, and has only characters fit for people; a fit text stays the same;
 * the class follows from the beginning of the error, and from what the broker knows.
 */
#include "fuzz.h"

#include "protocol/node_error.h"
#include "shared/text.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* longer than any beginning that node_error.c knows */
#define BEGINNING 40

static void
classify(const char *error, bool connecting, bool refused)
{
	NodeError class = node_error_class(error, connecting, refused);
	char beginning[BEGINNING + 1];

	must(class >= 0 && class < NODE_ERRORS);
	snprintf(beginning, sizeof(beginning), "%s", error);
	must(node_error_class(beginning, connecting, refused) == class);
	/* only an error without a class of its own depends on what the broker knows */
	if (node_error_class(error, false, false) != NODE_ERROR_OTHER)
	{
		must(node_error_class(error, false, false) == class);
		must(error[0] != '\0' && strchr("nOciEWNDR", error[0]) != NULL);
	}
	else
		must(class == (refused      ? NODE_ERROR_REFUSAL
					   : connecting ? NODE_ERROR_CONNECTION
									: NODE_ERROR_OTHER));
}

static void
must_be_printable(const char *text, size_t room)
{
	must(memchr(text, '\0', room) != NULL);
	for (; *text != '\0'; text++)
		must(*text >= ' ' && *text <= '~');
}

static void
make_utf8(const char *from, size_t len, size_t room)
{
	char *text = malloc(room);
	char *again = malloc(room);

	text_to_utf8(text, room, from, len);
	must(memchr(text, '\0', room) != NULL);
	must(text_find_control(text) == NULL);
	text_to_utf8(again, room, text, strlen(text));
	must(strcmp(text, again) == 0);
	for (const char *at = text; *at != '\0'; at += text_utf8_len(at, strlen(at)))
		must(text_utf8_len(at, strlen(at)) > 0);
	/* cut only where no further character fits */
	if (strlen(text) + 4 < room)
		must(strlen(text) <= len && (len == 0 || text[0] != '\0'));
	free(text);
	free(again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	unsigned known = take_below(&bytes, 4);
	size_t room = 1 + take_below(&bytes, 200);
	const char *from = (const char *) bytes.at;
	size_t len = (size_t) (bytes.end - bytes.at);
	char *error = take_text_copy(&bytes, 1000);
	char *text = malloc(room);

	classify(error, known & 1, known & 2);
	text_of_node(text, room, from, len);
	must_be_printable(text, room);
	must(text[0] == '\0' || (text[strlen(text) - 1] != '.' && text[strlen(text) - 1] != ' ') ||
		 strlen(text) == room - 1);
	text_to_printable(text, room, from, len);
	must_be_printable(text, room);
	must(strlen(text) == (len < room - 1 ? len : room - 1));
	make_utf8(from, len, room);
	free(text);
	free(error);
	return 0;
}

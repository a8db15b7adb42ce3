/*
 * url_fuzz.c
 *		Lists of nodes, as in redlock.nodes, by src/shared/url.c.
 *
 * A list from the file of joint lists is memory; see src/broker/joint_file.c.
 *
 * Claims: each part of a URL ends, and is fit for people; a list that is read, and written again
 * with its addresses, is read the same; a node is in a list once; an error is one line; damaged
 * memory is refused, or can be read.
 */
#include "fuzz.h"

#include "shared/text.h"
#include "shared/url.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* bytes of a URL, with each byte of the credentials percent-encoded */
#define URL_SIZE_MAX (3 * (128 + 256) + 256 + 64)

static char *
put_encoded(char *at, const char *text)
{
	for (; *text != '\0'; text++)
		at += sprintf(at, "%%%02X", (unsigned char) *text);
	return at;
}

static char *
put_url(char *at, const NodeUrl *url)
{
	static const char *const durable[] = {"", "durable=yes", "durable=no"};

	if (url->is_local)
		return at + sprintf(at, URL_LOCAL);
	at += sprintf(at, "%s://", url->is_unix ? "unix" : url->tls ? "rediss" : "redis");
	if (url->password[0] != '\0')
	{
		at = put_encoded(at, url->user);
		*at++ = ':';
		at = put_encoded(at, url->password);
		*at++ = '@';
	}
	at += sprintf(at, "%s", url->address);
	if (url->durable != URL_DURABLE_UNSAID)
		at += sprintf(at, "%s%s", url->is_unix && url->db != 0 ? "&" : "?", durable[url->durable]);
	return at;
}

static void
check_url(const NodeUrl *url)
{
	must(memchr(url->address, '\0', sizeof(url->address)) != NULL);
	must(memchr(url->host, '\0', sizeof(url->host)) != NULL);
	must(memchr(url->user, '\0', sizeof(url->user)) != NULL);
	must(memchr(url->password, '\0', sizeof(url->password)) != NULL);
	must(url->address[0] != '\0' && text_find_control(url->address) == NULL);
	must(url->db >= 0 && !(url->is_unix && url->tls));
	if (url->is_local)
		must(url->host[0] == '\0' && url->port == 0);
	else if (url->is_unix)
		must(url->host[0] == '/' && url->port == 0);
	else
		must(url->host[0] != '\0' && url->port > 0 && url->port <= 65535);
	must(url->password[0] != '\0' || url->user[0] == '\0');
}

/* Changes bytes of a list, as a damaged file of joint lists would. */
static void
damage(NodeUrls *urls, Bytes *bytes)
{
	uint8_t *memory = (uint8_t *) urls;
	bool empty = urls->count == 0;

	must(url_is_list(urls) == !empty);
	while (bytes->at < bytes->end)
	{
		size_t place = 256 * take_below(bytes, 256) + take_below(bytes, 256);
		size_t len = take_below(bytes, 256);
		uint8_t value = (uint8_t) take_below(bytes, 256);

		for (size_t i = 0; i < len && place < sizeof(*urls); i++)
			memory[place++] = value;
	}
	if (!url_is_list(urls))
		return;
	must(urls->count > 0 && urls->count <= URL_NODES_MAX && (urls->mixed || !urls->mixed));
	for (int i = 0; i < urls->count; i++)
	{
		const NodeUrl *url = &urls->url[i];

		must(strlen(url->address) < sizeof(url->address) && strlen(url->host) < sizeof(url->host) &&
			 strlen(url->user) < sizeof(url->user) &&
			 strlen(url->password) < sizeof(url->password));
		must((url->is_local || !url->is_local) && (url->is_unix || !url->is_unix) &&
			 (url->tls || !url->tls) && url->durable <= URL_NOT_DURABLE);
		must(url->port >= 0 && url->port <= 65535 && url->db >= 0);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	/* the list ends at the first NUL; the bytes behind damage the list in memory */
	const uint8_t *end = memchr(data, '\0', size);
	char *list = take_text_copy(&bytes, end != NULL ? (size_t) (end - data) : 8192);
	char *again = malloc(URL_NODES_MAX * URL_SIZE_MAX);
	char *at = again;
	static NodeUrls urls;
	static NodeUrls read_again;
	const char *error = url_parse_list(list, &urls);

	must(urls.count >= 0 && urls.count <= URL_NODES_MAX);
	if (error != NULL)
	{
		must(strlen(error) > 0 && text_find_control(error) == NULL);
		must(urls.mixed == (strcmp(error, URL_MIXED) == 0));
	}
	for (int i = 0; error == NULL && i < urls.count; i++)
	{
		check_url(&urls.url[i]);
		must(!urls.url[i].is_local || urls.count == 1);
		for (int j = 0; j < i; j++)
			must(strcmp(urls.url[i].address, urls.url[j].address) != 0);
		at = put_url(at, &urls.url[i]);
		*at++ = ',';
	}
	*at = '\0';
	if (error == NULL)
	{
		must(url_parse_list(again, &read_again) == NULL);
		must(memcmp(&read_again, &urls, sizeof(urls)) == 0);
		(void) take_below(&bytes, 1);
		damage(&urls, &bytes);
	}
	free(again);
	free(list);
	return 0;
}

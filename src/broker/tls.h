/*
 * tls.h
 *		TLS on the connections to nodes: the settings redlock.tls_*, and texts for failures.
 *
 * hiredis reads and writes the TLS records, on non-blocking sockets, so the handshake goes on with
 * each read and write of a connection.  The deadline of the handshake is RedisNode.deadline_us
 * (node.c).  OpenSSL verifies certificates, by objects made here.
 * OpenSSL is first used when a node wants TLS, and in the broker only.
 *
 * In a build without TLS, redlock.nodes refuses rediss:// URLs, so no connection calls these
 * functions.
 */
#ifndef REDLOCK_TLS_H
#define REDLOCK_TLS_H

#include "shared/compat.h"

typedef struct ssl_st TlsConnection; /* OpenSSL's */

/*
 * Reads the files again.  True: connections must be made again, by the new settings.  If the new
 * settings are unusable, logs the reason and keeps the former ones.
 */
extern bool tls_reload(void);

/*
 * Begins TLS on an open connection, which frees the TLS object.  Returns NULL on failure, with the
 * reason in `error`.
 */
extern TlsConnection *tls_begin(redisContext *connection, const char *host, char *error,
								size_t size);

/* To be called before each read and write. */
extern void tls_before_io(void);

/* Does an unfinished read or write wait for room in the socket?  Otherwise it waits for bytes. */
extern bool tls_waits_for_room(const TlsConnection *tls);

/* Has OpenSSL taken bytes from the socket that were not read yet? */
extern bool tls_has_more(const TlsConnection *tls);

/* Returns the phase of the connection, for people; NULL: the TLS handshake is over. */
extern const char *tls_phase(const TlsConnection *tls);

/*
 * To be called when a read or a write failed.  Writes the reason into `error`, if TLS knows it.
 * True: certificates or settings are the reason.
 */
extern bool tls_explain(TlsConnection *tls, char *error, size_t size);

#endif /* REDLOCK_TLS_H */

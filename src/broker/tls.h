/*
 * tls.h
 *		TLS on the connections to nodes: what redlock.tls_* says, and why it failed.
 *
 * The records are hiredis's affair, on sockets that never block, so the handshake goes
 * on with each read and write of a connection.  What is verified is OpenSSL's, on objects
 * that are made here.  Nothing of OpenSSL is touched before the first node wants TLS, and
 * in no process but the broker.
 *
 * A build without TLS has no connection that uses this: its redlock.nodes takes none.
 */
#ifndef REDLOCK_TLS_H
#define REDLOCK_TLS_H

#include "shared/compat.h"

typedef struct ssl_st TlsConnection; /* OpenSSL's */

/*
 * Read the files again.  True: connections must be made anew, by what they say now.  If
 * they can't be used, that is logged, and what was in force stays so.
 */
extern bool tls_reload(void);

/*
 * Begin TLS on a connection that is open; it is freed with it.  NULL: it failed, and
 * `error` tells why.
 */
extern TlsConnection *tls_begin(redisContext *connection, const char *host, char *error,
								size_t size);

/* To be called before each read and write. */
extern void tls_before_io(void);

/* What a read or a write that is not done waits for: room in the socket, else bytes. */
extern bool tls_waits_for_room(const TlsConnection *tls);

/* Was more taken from the socket than was read? */
extern bool tls_has_more(const TlsConnection *tls);

/* What is under way, for people; NULL: the handshake of TLS is over. */
extern const char *tls_phase(const TlsConnection *tls);

/*
 * A read or a write failed: why, where TLS knows; else `error` is left as it is.  True:
 * it is a matter of certificates or settings.
 */
extern bool tls_explain(TlsConnection *tls, char *error, size_t size);

#endif /* REDLOCK_TLS_H */

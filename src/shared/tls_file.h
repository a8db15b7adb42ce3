/*
 * tls_file.h
 *		The files of redlock.tls_*: can they be what they should?
 *
 * Looked at without OpenSSL, since settings are checked in all processes of the server;
 * the broker alone reads what is in them (tls.h).
 */
#ifndef REDLOCK_TLS_FILE_H
#define REDLOCK_TLS_FILE_H

typedef enum TlsFile
{
	TLS_CA_FILE,
	TLS_CERT_FILE,
	TLS_KEY_FILE,
	TLS_FILES /* how many */
} TlsFile;

/*
 * Returns NULL, or why it can't be used, as the rest of a sentence, in static memory; then
 * `hint` is what to do, or NULL.
 */
extern const char *tls_file_problem(TlsFile what, const char *path, const char **hint);

#endif /* REDLOCK_TLS_FILE_H */

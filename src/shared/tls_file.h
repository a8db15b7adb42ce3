/*
 * tls_file.h
 *		Checks of the files of redlock.tls_*.
 *
 * The checks use no OpenSSL, since all processes of the server check settings.  The broker alone
 * reads the contents (tls.h).
 */
#ifndef REDLOCK_TLS_FILE_H
#define REDLOCK_TLS_FILE_H

typedef enum TlsFile
{
	TLS_CA_FILE,
	TLS_CERT_FILE,
	TLS_KEY_FILE,
	TLS_FILES /* number of kinds */
} TlsFile;

/*
 * Returns NULL, or the reason why the file cannot be used, as the rest of a sentence, in static
 * memory.  Then `hint` is the remedy, or NULL.
 */
extern const char *tls_file_problem(TlsFile what, const char *path, const char **hint);

#endif /* REDLOCK_TLS_FILE_H */

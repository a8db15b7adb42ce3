/*
 * tls.c
 *		TLS on the connections to nodes; see tls.h.
 */
#include "postgres.h"

#include "broker/tls.h"

#ifdef REDLOCK_TLS

#include <sys/stat.h>

#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "broker/resolver.h"
#include "shared/guc.h"
#include "shared/tls_file.h"

/*
 * The most bytes that one call of OpenSSL reads.  OpenSSL reads on while there are bytes, and a
 * hostile node can always send more: tickets, ignored greetings.
 */
#define BYTES_OF_A_CALL (16 * 1024)

/* Identifies a version of a file. */
typedef struct FileVersion
{
	dev_t device;
	ino_t inode;
	off_t size;
	struct timespec changed;
} FileVersion;

typedef struct Version
{
	int verify;
	FileVersion file[TLS_FILES];
} Version;

static bool wanted = false; /* some node has used TLS since the broker's start */
static SSL_CTX *context;    /* NULL: the settings are unusable, */
static char problem[160];   /* ... for this reason */
static Version version;     /* of the files in `context` */
static bool passphrase_wanted;
static ssize_t bytes_left;

static SSL_CTX *make_context(void);
static const char *fill_context(SSL_CTX *made);
static void look_at_files(Version *seen);
static const char *path_of(TlsFile what);
static int no_passphrase(char *passphrase, int size, int writing, void *arg);
static void on_state(const SSL *tls, int where, int result);
static long count_bytes(BIO *bio, int what, const char *bytes, size_t len, int argi, long argl,
						int result, size_t *processed);
static bool set_name(SSL *tls, const char *host);
static const char *reason_of(unsigned long code);
static bool explain_certificate(long verdict, char *error, size_t size);
static bool explain_alert(SSL *tls, int alert, char *error, size_t size);

bool
tls_reload(void)
{
	Version seen;
	SSL_CTX *made;
	bool changed;

	if (!wanted)
		return false;
	look_at_files(&seen);
	made = make_context();
	if (made == NULL)
	{
		/* without a context, the error of each node tells */
		if (context != NULL)
			ereport(LOG, (errcode(ERRCODE_CONFIG_FILE_ERROR),
						  errmsg("TLS settings of redlock nodes were not loaded: %s", problem),
						  errdetail("The settings that were loaded before stay in force."),
						  errhint("Mend the file or the setting, and reload the configuration.")));
		return false;
	}
	changed = context == NULL || memcmp(&seen, &version, sizeof(seen)) != 0;
	SSL_CTX_free(context);
	context = made;
	version = seen;
	return changed;
}

TlsConnection *
tls_begin(redisContext *connection, const char *host, char *error, size_t size)
{
	SSL *tls;

	if (!wanted)
	{
		wanted = true;
		look_at_files(&version);
		context = make_context();
	}
	if (context == NULL)
	{
		strlcpy(error, problem, size);
		return NULL;
	}
	tls_before_io();
	tls = SSL_new(context);
	if (tls == NULL || !set_name(tls, host))
	{
		snprintf(error, size, "could not begin TLS: %s", reason_of(ERR_peek_error()));
		SSL_free(tls);
		return NULL;
	}
	if (redisInitiateSSL(connection, tls) != REDIS_OK)
	{
		snprintf(error, size, "could not begin TLS: %s", connection->errstr);
		tls_explain(tls, error, size);
		SSL_free(tls);
		return NULL;
	}
	return tls;
}

void
tls_before_io(void)
{
	/* OpenSSL reports a leftover error of an earlier call as a new one */
	ERR_clear_error();
	bytes_left = BYTES_OF_A_CALL;
}

bool
tls_waits_for_room(const TlsConnection *tls)
{
	return SSL_want_write(tls);
}

bool
tls_has_more(const TlsConnection *tls)
{
	return SSL_pending(tls) > 0;
}

const char *
tls_phase(const TlsConnection *tls)
{
	if (SSL_is_init_finished(tls))
		return NULL;
	/* a server without TLS waits silently for the end of a line */
	return BIO_number_read(SSL_get_rbio(tls)) > 0
			   ? "TLS handshake"
			   : "TLS handshake; if it has no TLS, its URL begins with redis://";
}

/* The settings */

/* Returns NULL if the settings are unusable, with the reason in `problem`. */
static SSL_CTX *
make_context(void)
{
	static const char *const setting[TLS_FILES] = {"redlock.tls_ca_file", "redlock.tls_cert_file",
												   "redlock.tls_key_file"};
	bool has_cert = path_of(TLS_CERT_FILE)[0] != '\0';
	bool has_key = path_of(TLS_KEY_FILE)[0] != '\0';
	SSL_CTX *made;
	const char *fault;
	const char *hint;

	for (int i = 0; i < TLS_FILES; i++)
	{
		fault = path_of(i)[0] != '\0' ? tls_file_problem(i, path_of(i), &hint) : NULL;
		if (fault != NULL)
		{
			snprintf(problem, sizeof(problem), "%s %s", setting[i], fault);
			return NULL;
		}
	}
	if (has_cert != has_key)
	{
		snprintf(problem, sizeof(problem), "%s is set without %s",
				 setting[has_cert ? TLS_CERT_FILE : TLS_KEY_FILE],
				 setting[has_cert ? TLS_KEY_FILE : TLS_CERT_FILE]);
		return NULL;
	}

	passphrase_wanted = false;
	ERR_clear_error();
	made = SSL_CTX_new(TLS_client_method());
	fault = made != NULL ? fill_context(made) : "TLS";
	if (fault != NULL)
	{
		snprintf(problem, sizeof(problem), "%s can't be used: %s", fault,
				 passphrase_wanted ? "it has a passphrase" : reason_of(ERR_peek_error()));
		SSL_CTX_free(made);
		return NULL;
	}
	return made;
}

/* Returns the unusable setting, or NULL. */
static const char *
fill_context(SSL_CTX *made)
{
	const char *ca_file = path_of(TLS_CA_FILE);
	const char *cert_file = path_of(TLS_CERT_FILE);
	const char *key_file = path_of(TLS_KEY_FILE);

	/* a hostile node could choose DHE numbers that cost a second */
	if (!SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION) ||
		!SSL_CTX_set_cipher_list(made, "DEFAULT:!DHE"))
		return "TLS";
	SSL_CTX_set_options(made, SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_set_default_passwd_cb(made, no_passphrase);
	SSL_CTX_set_info_callback(made, on_state);
	SSL_CTX_set_verify(
		made, redlock_tls_verify == TLS_VERIFY_NONE ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);

	if (ca_file[0] != '\0' ? !SSL_CTX_load_verify_locations(made, ca_file, NULL)
						   : !SSL_CTX_set_default_verify_paths(made))
		return "redlock.tls_ca_file";
	if (cert_file[0] == '\0')
		return NULL;
	if (SSL_CTX_use_certificate_chain_file(made, cert_file) != 1)
		return "redlock.tls_cert_file";
	if (SSL_CTX_use_PrivateKey_file(made, key_file, SSL_FILETYPE_PEM) != 1)
		return "redlock.tls_key_file";
	return NULL;
}

/* A file that cannot be read stays zero. */
static void
look_at_files(Version *seen)
{
	struct stat file;

	memset(seen, 0, sizeof(*seen));
	seen->verify = redlock_tls_verify;
	for (int i = 0; i < TLS_FILES; i++)
		if (path_of(i)[0] != '\0' && stat(path_of(i), &file) == 0)
		{
			seen->file[i].device = file.st_dev;
			seen->file[i].inode = file.st_ino;
			seen->file[i].size = file.st_size;
			seen->file[i].changed = file.st_ctim;
		}
}

static const char *
path_of(TlsFile what)
{
	switch (what)
	{
		case TLS_CA_FILE:
			return redlock_tls_ca_file;
		case TLS_CERT_FILE:
			return redlock_tls_cert_file;
		default:
			return redlock_tls_key_file;
	}
}

/* Without this, OpenSSL would ask for the passphrase at the terminal. */
static int
no_passphrase(char *passphrase, int size, int writing, void *arg)
{
	passphrase_wanted = true;
	return -1;
}

/*
 * A connection
 */

/* Installs the byte limit before the handshake reads its first byte. */
static void
on_state(const SSL *tls, int where, int result)
{
	if (where == SSL_CB_HANDSHAKE_START)
		BIO_set_callback_ex(SSL_get_rbio(tls), count_bytes);
}

/* Pretends that the socket is empty when BYTES_OF_A_CALL have been read. */
static long
count_bytes(BIO *bio, int what, const char *bytes, size_t len, int argi, long argl, int result,
			size_t *processed)
{
	if (what == BIO_CB_READ && bytes_left <= 0)
	{
		BIO_clear_retry_flags(bio);
		BIO_set_retry_read(bio);
		return -1;
	}
	if (what == (BIO_CB_READ | BIO_CB_RETURN) && result > 0)
		bytes_left -= *processed;
	return result;
}

/*
 * Sets the host name to verify.  A name also goes into the greeting, for servers with several
 * certificates.
 */
static bool
set_name(SSL *tls, const char *host)
{
	bool verify = version.verify == TLS_VERIFY_FULL;
	char name[256]; /* names in URLs are shorter */
	size_t len = strlcpy(name, host, sizeof(name));

	SSL_set_hostflags(tls,
					  X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
	if (resolver_is_address(host))
		return !verify || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host);

	/* the final dot of a full name is only for DNS; an empty name would skip the check */
	if (len > 1 && len < sizeof(name) && name[len - 1] == '.')
		name[len - 1] = '\0';
	return SSL_set_tlsext_host_name(tls, name) && (!verify || SSL_set1_host(tls, name));
}

/* Failures */

bool
tls_explain(TlsConnection *tls, char *error, size_t size)
{
	unsigned long code = ERR_peek_error();
	char byte;

	/* the node may have sent the reason before it closed the connection */
	if (code == 0 || ERR_SYSTEM_ERROR(code))
	{
		tls_before_io();
		(void) SSL_read(tls, &byte, 1);
		code = ERR_peek_error();
	}
	if (code == 0 || ERR_SYSTEM_ERROR(code))
		return false;

	if (ERR_GET_LIB(code) == ERR_LIB_SSL)
	{
		int reason = ERR_GET_REASON(code);

		if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
			return explain_certificate(SSL_get_verify_result(tls), error, size);
		if (reason > SSL_AD_REASON_OFFSET)
			return explain_alert(tls, reason - SSL_AD_REASON_OFFSET, error, size);
		if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		{
			strlcpy(error, "it closed the connection", size);
			return false;
		}
		if (reason == SSL_R_UNSUPPORTED_PROTOCOL)
		{
			strlcpy(error, "it has no TLS 1.2 or later", size);
			return true;
		}
		if (!SSL_is_init_finished(tls) && reason == SSL_R_WRONG_VERSION_NUMBER)
		{
			strlcpy(error, "it does not speak TLS; if it should not, its URL begins with redis://",
					size);
			return true;
		}
	}
	snprintf(error, size, "TLS failed: %s", reason_of(code));
	return false;
}

static const char *
reason_of(unsigned long code)
{
	const char *reason = ERR_reason_error_string(code);

	return reason != NULL ? reason : "no reason was given";
}

static bool
explain_certificate(long verdict, char *error, size_t size)
{
	const char *reason = X509_verify_cert_error_string(verdict);

	switch (verdict)
	{
		case X509_V_ERR_CERT_HAS_EXPIRED:
			strlcpy(error, "its certificate, or one above it, has expired", size);
			break;
		case X509_V_ERR_CERT_NOT_YET_VALID:
			strlcpy(error, "its certificate, or one above it, is not yet valid", size);
			break;
		case X509_V_ERR_HOSTNAME_MISMATCH:
		case X509_V_ERR_IP_ADDRESS_MISMATCH:
			strlcpy(error, "its certificate is for another name than that in its URL", size);
			break;
		case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
		case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
		case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
		case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
		case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
			snprintf(error, size, "its certificate is from an unknown authority (%s)", reason);
			break;
		default:
			snprintf(error, size, "its certificate is not accepted: %s", reason);
			break;
	}
	return true;
}

/* Explains an alert, by which the node refused us. */
static bool
explain_alert(SSL *tls, int alert, char *error, size_t size)
{
	bool has_cert = SSL_get_certificate(tls) != NULL;

	/* before TLS 1.3 the alert does not name the missing certificate, but the node asked for one */
	if (alert == TLS13_AD_CERTIFICATE_REQUIRED ||
		(alert == SSL_AD_HANDSHAKE_FAILURE && !has_cert && SSL_get0_peer_CA_list(tls) != NULL))
		strlcpy(error, "it wants a client certificate (redlock.tls_cert_file)", size);
	else if (alert == SSL_AD_PROTOCOL_VERSION)
		strlcpy(error, "it has no TLS 1.2 or later", size);
	else if (has_cert && (alert == SSL_AD_UNKNOWN_CA ||
						  (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN)))
		snprintf(error, size, "it does not accept the client certificate: %s",
				 SSL_alert_desc_string_long(alert));
	else
		snprintf(error, size, "it ended the connection: %s", SSL_alert_desc_string_long(alert));
	return true;
}

#else /* no TLS */

bool
tls_reload(void)
{
	return false;
}

TlsConnection *
tls_begin(redisContext *connection, const char *host, char *error, size_t size)
{
	strlcpy(error, "this build has no TLS", size);
	return NULL;
}

void
tls_before_io(void)
{
}

bool
tls_waits_for_room(const TlsConnection *tls)
{
	return false;
}

bool
tls_has_more(const TlsConnection *tls)
{
	return false;
}

const char *
tls_phase(const TlsConnection *tls)
{
	return NULL;
}

bool
tls_explain(TlsConnection *tls, char *error, size_t size)
{
	return false;
}

#endif

/*
 * arguments.c
 *		The arguments of the functions that SQL calls; see arguments.h.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "protocol/scopes.h"
#include "session/grants.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/text.h"
#include "sql/arguments.h"
#include "sql/intervals.h"

/* limit for an array of names, with duplicates */
#define ELEMENTS_MAX 10000

static void check_name(char *name, int element, LockName *checked);
static bool is_list(const char *name);
static const char *which_name(int element);
static bool is_argument(FunctionCallInfo fcinfo, int arg);
static int64 get_wait_ms(FunctionCallInfo fcinfo, int arg);
static void get_hold_limits(FunctionCallInfo fcinfo, const TermArguments *at, LeaseTerms *terms);
static int get_keep_idle_ms(FunctionCallInfo fcinfo, int arg);
static int get_permits(FunctionCallInfo fcinfo, int arg);
static void check_name_with_permits(const LockName *name);
static bool get_shared(FunctionCallInfo fcinfo, int arg);
static int get_ttl_ms(FunctionCallInfo fcinfo, int arg);
static LockScope get_scope(FunctionCallInfo fcinfo, int arg);
static void check_scope(LockScope scope);
static inline bool says(const text *given, const char *word);

/* Only a session's own process knows the session's locks. */
void
require_session(void)
{
	lease_require_preload();
	if (IsParallelWorker())
		ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
						errmsg("redlocks can't be used in a parallel worker"),
						errhint("Mark the calling function as PARALLEL UNSAFE.")));
}

void
get_name(FunctionCallInfo fcinfo, LockName *name)
{
	require_session();
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the name of a redlock must not be null")));
	check_name(text_to_cstring(PG_GETARG_TEXT_PP(0)), 0, name);
}

/*
 * Checks a name and converts it to UTF-8 for the key, whatever the database's encoding is.
 * element: number in the array, from one; 0: a single name.
 */
static void
check_name(char *name, int element, LockName *checked)
{
	char *utf8;
	int utf8_len;
	const unsigned char *control;

	if (name[0] == '\0')
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the name of a redlock must not be empty"),
						element > 0 ? errdetail("%s is empty.", which_name(element)) : 0));
	utf8 = pg_server_to_any(name, strlen(name), PG_UTF8);
	utf8_len = (int) strlen(utf8);
	if (utf8_len > LOCK_NAME_MAX)
		ereport(ERROR, (errcode(ERRCODE_NAME_TOO_LONG), errmsg("the name of a redlock is too long"),
						errdetail("%s has %d bytes in UTF-8; the limit is %d.", which_name(element),
								  utf8_len, LOCK_NAME_MAX)));
	if (is_list(name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the name of a redlock must not have the form of a list"),
				 errdetail("%s is in brackets, as some drivers send an array or a tuple.",
						   which_name(element)),
				 element > 0 ? errhint("Choose another name.")
							 : errhint("To acquire several locks, call redlock_acquire_all or "
									   "redlock_try_all with an array. Otherwise choose another "
									   "name.")));
	control = text_find_control(utf8);
	if (control != NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the name of a redlock must not contain control characters"),
						errdetail("%s contains U+%04X.", which_name(element),
								  *control == 0xc2 ? control[1] : control[0])));
	checked->name = name;
	checked->utf8 = utf8;
	checked->utf8_len = utf8_len;
	checked->hash = lease_hash(utf8, utf8_len);
}

/* Returns true for an array, {a,b} or [0:1]={a,b}, and for a row, (a,b). */
static bool
is_list(const char *name)
{
	char last = name[strlen(name) - 1];

	return ((name[0] == '{' || name[0] == '[') && last == '}') || (name[0] == '(' && last == ')');
}

/* for messages */
static const char *
which_name(int element)
{
	return element > 0 ? psprintf("Element %d of the array", element) : "The name";
}

/*
 * Returns the names as given, and their number in *count.  The request gets each name once, in
 * the order common to all hosts.
 */
LockName *
get_names(FunctionCallInfo fcinfo, LockRequest *request, int *count)
{
	ArrayType *array;
	Datum *elements;
	bool *nulls;
	LockName *given;
	LockName *names;

	require_session();
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the array of redlock names must not be null"),
						errhint("Give at least one name.")));
	array = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
						errmsg("the array of redlock names must have one dimension"),
						errdetail("The array has %d dimensions.", ARR_NDIM(array)),
						errhint("Give all names in one row: ARRAY['a', 'b'].")));
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > ELEMENTS_MAX)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("too many redlocks are requested at once"),
						errdetail("The array has %d elements; the limit is %d, with duplicates.",
								  ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), ELEMENTS_MAX),
						errhint("Give each name once.")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, count);
	if (*count == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the array of redlock names must not be empty"),
						errhint("Give at least one name.")));

	given = palloc(*count * sizeof(LockName));
	names = palloc(*count * sizeof(LockName));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
							errmsg("the name of a redlock must not be null"),
							errdetail("Element %d of the array is null.", i + 1),
							errhint("Remove the element, or name a lock.")));
		check_name(TextDatumGetCString(elements[i]), i + 1, &given[i]);
		names[i] = given[i];
	}
	qsort(names, *count, sizeof(LockName), compare_names);
	request->names = names;
	for (int i = 0; i < *count; i++)
		if (i == 0 || compare_names(&names[i], &names[request->count - 1]) != 0)
			names[request->count++] = names[i];
	if (request->count > SEVERAL_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many redlocks are requested at once"),
				 errdetail("There are %d names; the limit is %d.", request->count, SEVERAL_MAX),
				 errhint("Acquire one lock for all, or make several calls, in the same order on "
						 "all hosts.")));
	return given;
}

int
compare_names(const void *one, const void *other)
{
	const LockName *a = one;
	const LockName *b = other;

	return several_compare(a->utf8, a->utf8_len, b->utf8, b->utf8_len);
}

/*
 * Errors have the order in which this function reads the arguments.  keep_idle comes last,
 * because its setting applies only where the given terms allow keep_idle.
 */
void
get_terms(FunctionCallInfo fcinfo, const TermArguments *at, Terms given, LockRequest *request)
{
	LeaseTerms *terms = &request->terms;
	bool says_keep_idle = is_argument(fcinfo, at->keep_idle) && !PG_ARGISNULL(at->keep_idle);

	grants_check(request->names, request->count);
	terms->ttl_ms = get_ttl_ms(fcinfo, at->ttl);
	terms->scope = at->scope > 0 ? get_scope(fcinfo, at->scope) : at->only_scope;
	check_scope(terms->scope);
	get_hold_limits(fcinfo, at, terms);
	terms->shared = is_argument(fcinfo, at->mode) && get_shared(fcinfo, at->mode);
	if (is_argument(fcinfo, at->permits))
		request->permits = get_permits(fcinfo, at->permits);
	if (says_keep_idle)
		terms->keep_idle_ms = get_keep_idle_ms(fcinfo, at->keep_idle);

	given |= terms->scope == SCOPE_TRANSACTION ? TERM(TERM_TRANSACTION) : 0;
	given |= terms->scope == SCOPE_DETACHED ? TERM(TERM_DETACHED) : 0;
	given |= terms->shared ? TERM(TERM_SHARED) : 0;
	given |= request->permits > 0 ? TERM(TERM_PERMITS) : 0;
	given |= terms->hold_at_least_ms > 0 ? TERM(TERM_HOLD_AT_LEAST) : 0;
	given |= terms->hold_at_most_ms > 0 ? TERM(TERM_HOLD_AT_MOST) : 0;
	given |= terms->keep_idle_ms > 0 ? TERM(TERM_KEEP_IDLE) : 0;
	terms_check(given);

	if (request->permits > 0)
		check_name_with_permits(&request->names[0]);
	if (terms->scope == SCOPE_DETACHED)
		check_max_hold(fcinfo, at->hold_at_most, "hold_at_most",
					   get_hold_us(fcinfo, at->hold_at_most, "hold_at_most"));
	if (!says_keep_idle && terms_allow(given, TERM_KEEP_IDLE))
	{
		terms->keep_idle_ms = redlock_keep_idle_ms;
		check_max_hold(fcinfo, at->keep_idle, "keep_idle", redlock_keep_idle_ms * INT64CONST(1000));
	}
}

/* Functions of earlier versions lack arguments; 0: this function has no such argument. */
static bool
is_argument(FunctionCallInfo fcinfo, int arg)
{
	return arg > 0 && arg < PG_NARGS();
}

/*
 * A try with `wait` returns false at the end of the wait.  The functions of 0.1.0 have no
 * argument `wait`.
 */
void
get_try_wait(FunctionCallInfo fcinfo, int wait, LockRequest *request)
{
	request->terms.once = true;
	if (wait < PG_NARGS())
		get_wait(fcinfo, wait, request);
	if (request->terms.once)
		request->wait_ms = -1;
	request->skip = !request->terms.once;
}

void
get_wait(FunctionCallInfo fcinfo, int arg, LockRequest *request)
{
	request->wait_ms = get_wait_ms(fcinfo, arg);
	request->terms.once = request->wait_ms == 0;
	request->terms.patient = request->wait_ms > 0;
}

/* in whole milliseconds, rounded up; -1: no limit */
static int64
get_wait_ms(FunctionCallInfo fcinfo, int arg)
{
	int64 us;

	if (PG_ARGISNULL(arg))
		return -1;
	us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("wait must not be negative"),
				 errhint("Use NULL to wait for as long as it takes, or zero not to wait.")));
	if (us > DURATION_MAX_MS * INT64CONST(1000))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("wait must not be longer than %d days", DURATION_MAX_DAYS),
						errhint("Use NULL to wait for as long as it takes.")));
	return (us + 999) / 1000;
}

/* Reads hold_at_least, rounded up to whole milliseconds, and hold_at_most, rounded down. */
static void
get_hold_limits(FunctionCallInfo fcinfo, const TermArguments *at, LeaseTerms *terms)
{
	int64 least_us = get_hold_us(fcinfo, at->hold_at_least, "hold_at_least");
	int64 most_us = get_hold_us(fcinfo, at->hold_at_most, "hold_at_most");

	check_max_hold(fcinfo, at->hold_at_least, "hold_at_least", least_us);
	if (most_us > DURATION_MAX_MS * INT64CONST(1000))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("hold_at_most must not be longer than %d days", DURATION_MAX_DAYS),
				 errhint("Leave hold_at_most out for no limit, unless the lock is detached.")));
	if (most_us > 0 && least_us > most_us)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("hold_at_least must not be longer than hold_at_most"),
						errdetail("The lock can't be kept longer than it may be held."),
						errhint("Make hold_at_most as long as hold_at_least or longer, or leave "
								"out one of the two.")));
	terms->hold_at_least_ms = (int) ((least_us + 999) / 1000);
	terms->hold_at_most_ms = (int) (most_us / 1000);
}

/* 0: not given */
int64
get_hold_us(FunctionCallInfo fcinfo, int arg, const char *name)
{
	int64 us;

	if (PG_ARGISNULL(arg))
		return 0;
	us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (us < 1000)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("%s must be at least 1 ms", name)));
	return us;
}

/* in whole milliseconds, rounded up; 0: not kept idle */
static int
get_keep_idle_ms(FunctionCallInfo fcinfo, int arg)
{
	int64 us = interval_us(PG_GETARG_INTERVAL_P(arg));

	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("keep_idle must not be negative"),
				 errhint("Use zero not to keep the lock idle.")));
	check_max_hold(fcinfo, arg, "keep_idle", us);
	return (int) ((us + 999) / 1000);
}

/* 0: the lock itself */
static int
get_permits(FunctionCallInfo fcinfo, int arg)
{
	int permits;

	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("permits must not be null")));
	permits = PG_GETARG_INT32(arg);
	if (permits < 1 || permits > PERMITS_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("permits must be from 1 to %d, not %d", PERMITS_MAX, permits)));
	return permits == 1 ? 0 : permits;
}

/* The key of a permit has the number of the permit behind the name. */
static void
check_name_with_permits(const LockName *name)
{
	if (name->utf8_len > LOCK_NAME_MAX - PERMITS_SUFFIX_MAX)
		ereport(
			ERROR,
			(errcode(ERRCODE_NAME_TOO_LONG), errmsg("the name of a redlock is too long"),
			 errdetail("The name has %d bytes in UTF-8; the limit for a lock with permits is %d.",
					   name->utf8_len, LOCK_NAME_MAX - PERMITS_SUFFIX_MAX)));
}

/* For an argument, or for the setting with the same name if the argument is missing. */
void
check_max_hold(FunctionCallInfo fcinfo, int arg, const char *name, int64 us)
{
	bool given = arg < PG_NARGS() && !PG_ARGISNULL(arg);

	if (us <= redlock_max_hold_ms * INT64CONST(1000))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a %s of %s is over redlock.max_hold, which is %s", name,
					given ? interval_text(PG_GETARG_INTERVAL_P(arg))
						  : GetConfigOptionByName(psprintf("redlock.%s", name), NULL, false),
					GetConfigOptionByName("redlock.max_hold", NULL, false)),
			 !given ? errhint("Lower redlock.%s, or give a shorter %s with the call.", name, name)
			 : redlock_max_hold_ms > 0
				 ? errhint("Use a shorter %s, or let a superuser raise redlock.max_hold.", name)
			 : strcmp(name, "hold_at_most") == 0
				 ? errhint("Use another scope, or let a superuser raise redlock.max_hold: with 0, "
						   "no lock may outlast its session.")
				 : errhint("Leave %s out, or let a superuser raise redlock.max_hold: with 0, no "
						   "lock may outlast its session.",
						   name)));
}

int64
get_token(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the token of a redlock must not be null")));
	return PG_GETARG_INT64(arg);
}

/* Returns true if the mode is "shared". */
static bool
get_shared(FunctionCallInfo fcinfo, int arg)
{
	text *mode;
	bool shared;

	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("mode must not be null")));
	mode = PG_GETARG_TEXT_PP(arg);
	shared = says(mode, "shared");
	if (!shared && !says(mode, "exclusive"))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("\"%s\" is no mode of a redlock", text_to_cstring(mode)),
						errhint("Use \"exclusive\" or \"shared\".")));
	return shared;
}

static inline bool
says(const text *given, const char *word)
{
	return VARSIZE_ANY_EXHDR(given) == strlen(word) &&
		   memcmp(VARDATA_ANY(given), word, strlen(word)) == 0;
}

/* redlock_run of 0.1.0 lacks these arguments. */
bool
get_flag(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (arg >= PG_NARGS())
		return false;
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
	return PG_GETARG_BOOL(arg);
}

/* in whole milliseconds, rounded down */
static int
get_ttl_ms(FunctionCallInfo fcinfo, int arg)
{
	int64 ttl_us = redlock_ttl_ms * INT64CONST(1000);

	if (!PG_ARGISNULL(arg))
		ttl_us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (ttl_us <= 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("ttl must be positive")));
	if (ttl_us < TTL_MIN_MS * 1000)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("ttl must be at least %d ms", TTL_MIN_MS)));
	if (ttl_us > redlock_max_ttl_ms * INT64CONST(1000))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("a ttl of %s is over redlock.max_ttl, which is %s",
							   PG_ARGISNULL(arg) ? GetConfigOptionByName("redlock.ttl", NULL, false)
												 : interval_text(PG_GETARG_INTERVAL_P(arg)),
							   GetConfigOptionByName("redlock.max_ttl", NULL, false)),
						errhint("%s A job may run longer than the ttl: the broker renews the lease "
								"while the session lives.",
								PG_ARGISNULL(arg) ? "Lower redlock.ttl, or give a ttl."
												  : "Use a shorter ttl.")));
	return (int) (ttl_us / 1000);
}

static LockScope
get_scope(FunctionCallInfo fcinfo, int arg)
{
	static Oid last_value = InvalidOid; /* most calls give the same scope */
	static LockScope last_scope;
	char *label;

	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("scope must not be null")));
	if (PG_GETARG_OID(arg) == last_value)
		return last_scope;
	label = DatumGetCString(DirectFunctionCall1(enum_out, PG_GETARG_DATUM(arg)));
	if (!scope_find(label, strlen(label), &last_scope))
		elog(ERROR, "unknown scope of a redlock: \"%s\"", label);
	last_value = PG_GETARG_OID(arg);
	return last_scope;
}

/* The scope that a call asks for counts, also if the session holds the lock at another scope. */
static void
check_scope(LockScope scope)
{
	if (redlock_allowed_scopes & SCOPE_IN_SET(scope))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for redlocks at scope \"%s\"", scope_name(scope)),
			 errdetail("redlock.allowed_scopes of this session is \"%s\".",
					   GetConfigOptionByName("redlock.allowed_scopes", NULL, false)),
			 errhint("Call redlock_acquire or redlock_try at an allowed scope, or let a superuser "
					 "add the scope to redlock.allowed_scopes of the role or database.")));
}

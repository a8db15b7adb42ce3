/*
 * session_internal.h
 *		Shared by session.c and session_attach.c only; lint checks the includes.
 */
#ifndef REDLOCK_SESSION_INTERNAL_H
#define REDLOCK_SESSION_INTERNAL_H

#include "session/session.h"

/*
 * session.c: sets up callbacks, hooks and alarms of a session that takes locks; no-op when called
 * again
 */
extern void session_start(void);

/* session.c: raises an error (0A000) in a replication connection */
extern void session_refuse_walsender(void);

#endif /* REDLOCK_SESSION_INTERNAL_H */

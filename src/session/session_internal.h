/*
 * session_internal.h
 *		What the files session.c and session_attach.c share among themselves.  No other file
 *		includes this header: lint checks that.
 */
#ifndef REDLOCK_SESSION_INTERNAL_H
#define REDLOCK_SESSION_INTERNAL_H

#include "session/session.h"

/* session.c: callbacks, hooks and alarms of a session that takes locks; no-op when done. */
extern void session_start(void);

#endif /* REDLOCK_SESSION_INTERNAL_H */

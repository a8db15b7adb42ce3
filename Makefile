# redlock_pg: distributed locks for SQL
#
#   make, make install      build and install
#   make unit               unit tests of the protocol core, no server needed
#   make installcheck       regression and isolation tests; needs a server that
#                           scripts/test.sh prepares
#   scripts/test.sh         everything, from nothing

MODULE_big = redlock_pg
OBJS = redlock_pg.o \
	src/broker.o src/clock.o src/core.o src/fence.o src/gate.o src/guard.o \
	src/guc.o src/lease.o src/loop.o src/lua.o src/node.o src/resolver.o \
	src/script.o src/session.o src/url.o

EXTENSION = redlock_pg
DATA = redlock_pg--0.1.0.sql
PGFILEDESC = "redlock_pg - distributed locks for SQL"

REGRESS = install arguments acquire token fence scopes views settings advisory call_scope warnings hold run
ISOLATION = exclude wait savepoint deadlock terminate handover locks skip fence_order
ISOLATION_OPTS = --load-extension=redlock_pg
TAP_TESTS = 1

PG_CPPFLAGS = -I$(srcdir)/src
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers
SHLIB_LINK = -lhiredis
EXTRA_CLEAN = test/unit/core_test

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

$(OBJS): $(wildcard $(srcdir)/src/*.h)

# The core's assertions are for its tests, and for builds with PostgreSQL's.
ifeq (,$(findstring USE_ASSERT_CHECKING,$(COPT)))
src/core.o: override CFLAGS += -DNDEBUG
endif

UNIT_CC = $(CC) -std=c99 -Wall -Wextra -Werror -g -Isrc

test/unit/core_test: test/unit/core_test.c src/core.c src/core.h
	mkdir -p $(@D)
	$(UNIT_CC) -o $@ $(filter %.c,$^)

unit: test/unit/core_test
	prove -e '' test/unit/core_test

.PHONY: unit

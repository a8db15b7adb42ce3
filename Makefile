# redlock_pg: distributed locks for SQL
#
#   make, make install      build and install
#   make dist               the archive of the last commit for PGXN
#   make unit               unit tests, no server needed
#   make fuzz               hostile bytes to the readers; needs clang; see test/fuzz/README.md;
#                           FUZZ_SECONDS=N for each target
#   make fuzz_mutants       broken readers, each of which make fuzz must find
#   make sim                the core in a simulated world; see test/sim/README.md
#   make crowd              many hosts on one lock: fairness, and load on the nodes
#   make deadlock           sessions of many hosts wait for each other
#   make together           sessions acquire several locks at once
#   make permits            sessions share the permits of a lock
#   make changes            hosts with different settings or node lists: exclusion
#   make worlds             the last five, two at a time
#   make mutants            mutants, each of which the simulator must find
#   make conformance        the simulated node against a redis-server
#   make branches           branches of the pure code that no test takes; needs clang
#   make model              models of the protocol, checked by TLC; needs Java and Python; see model/README.md
#   make script_mutants     mutants of redlock.lua, each of which conformance must find;
#                           SHARE=K/N tries each Nth mutant only
#   make installcheck       regression and isolation tests, on a server prepared by
#                           scripts/test.sh
#   scripts/test.sh         everything, from nothing

MODULE_big = redlock_pg
OBJS = redlock_pg.o $(patsubst %,src/%.o, \
	protocol/core protocol/core_acquire protocol/core_debts protocol/core_renew protocol/entry protocol/force_release protocol/guard protocol/hearing protocol/hosts protocol/inspect_many protocol/inspection protocol/local_inspect protocol/local_names protocol/local_node protocol/local_notes protocol/lua protocol/lua_text protocol/overlap \
	protocol/pattern protocol/permits protocol/probe protocol/probe_budget protocol/release_queue protocol/rules protocol/run_note protocol/scopes protocol/settling protocol/several \
	protocol/node_error protocol/node_index protocol/standing protocol/steps protocol/value protocol/waiters protocol/waiting_hosts protocol/wish protocol/words driver/driver driver/turns \
	shared/alarm shared/clock shared/guc shared/holder shared/host_list shared/inspect_queue shared/lease shared/lease_broker \
	shared/lease_entries shared/lease_gate shared/lease_memory shared/lease_shared shared/lease_stats shared/lease_unowned shared/lease_view \
	shared/memory shared/new_names shared/node_stats shared/node_status shared/resource_stats shared/run_report shared/stats_file shared/text shared/tls_file shared/url shared/wait_events shared/waiting_here \
	broker/broker broker/conflicts broker/deadlock broker/host_entry broker/host_pages broker/inspector broker/joint_file \
	broker/leaving broker/local_wait broker/loop broker/marks broker/members broker/node broker/node_checks \
	broker/node_clock broker/node_local broker/node_local_inspect broker/node_news broker/node_pipeline broker/registry broker/resolver broker/script \
	broker/subscription broker/timers broker/tls broker/told broker/trouble broker/waiting broker/world \
	session/ask_hosts session/ask_release session/detached session/effects session/encoding session/extension session/fence session/force session/gate session/grants session/holdings session/inspect_lock session/run_notes session/list_waiting \
	session/loss session/loss_alarm session/misuse session/permit_queue session/request \
	session/request_errors session/request_lease session/request_log session/runs session/scan_locks session/session session/session_attach \
	session/transaction \
	sql/arguments sql/diagnose sql/diagnose_hosts sql/diagnose_nodes sql/fencing sql/granting sql/inspect sql/intervals sql/last_run sql/locks sql/merge sql/procedure sql/run sql/stat_views sql/terms sql/views)

EXTENSION = redlock_pg
DATA = redlock_pg--0.1.0.sql redlock_pg--0.1.0--0.2.0.sql redlock_pg--0.2.0.sql
PGFILEDESC = "redlock_pg - distributed locks for SQL"

REGRESS = install arguments terms acquire token fence scopes views settings several shared permits advisory call_scope warnings hold keep_idle detached run run_all allowed_scopes grants parallel privileges
ISOLATION = exclude sharing wait savepoint deadlock terminate handover locks skip fence_order
ISOLATION_OPTS = --load-extension=redlock_pg
TAP_TESTS = 1

# TLS to the nodes needs hiredis 1.0 or later with TLS, and OpenSSL 3.0 or later.
# make with_tls=no leaves TLS out; with_tls=yes fails without these libraries.
HASH := \#
TLS_LIBS := -lhiredis_ssl -lssl -lcrypto
ifeq ($(with_tls),)
with_tls := $(shell printf '%s\n' '$(HASH)include <hiredis/hiredis.h>' \
	'$(HASH)include <hiredis/hiredis_ssl.h>' '$(HASH)include <openssl/ssl.h>' \
	'int main(void) { return redisInitiateSSL(0, SSL_new(0)) + !SSL_get1_peer_certificate(0); }' | \
	$(CC) $(CPPFLAGS) -x c - -o /dev/null $(LDFLAGS) $(TLS_LIBS) -lhiredis >/dev/null 2>&1 && \
	echo yes || echo no)
endif

ifeq (,$(filter yes no,$(with_tls)))
$(error with_tls is yes or no, not "$(with_tls)")
endif

# The version that hosts publish to each other.
REDLOCK_VERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(srcdir)/redlock_pg.control)

PG_CPPFLAGS = -I$(srcdir)/src -DREDLOCK_VERSION='"$(REDLOCK_VERSION)"' $(if $(filter yes,$(with_tls)),-DREDLOCK_TLS)
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers $(PTHREAD_CFLAGS)
# As PostgreSQL does for extensions from 16 on: our names cannot collide with names of other
# extensions in the server.
PG_CONFIG ?= pg_config
ifneq (,$(findstring PostgreSQL 15,$(shell $(PG_CONFIG) --version)))
PG_CFLAGS += -fvisibility=hidden -D'PGDLLEXPORT=__attribute__((visibility("default")))'
endif
SHLIB_LINK = $(if $(filter yes,$(with_tls)),$(TLS_LIBS)) -lhiredis $(PTHREAD_LIBS)
EXTRA_CLEAN = $(UNIT_TESTS) $(FUZZERS) $(SIMULATORS) test/sim/conformance $(EXEC) $(EXEC_OBJS)

# PGXS builds a library or a program, not both, so the rules of the program are below.
EXEC = exec/redlock-exec
EXEC_OBJS = $(patsubst %,exec/%.o,front keeper lock main watch)

# No query gains from bitcode, and inlined code could not call the library's hidden functions.
override with_llvm = no
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq (,$(PGXS))
$(error $(PG_CONFIG) is not there, or fails: name one by PG_CONFIG=...)
endif
include $(PGXS)

ifneq (,$(filter 9.% 10 11 12 13 14,$(MAJORVERSION)))
$(error redlock_pg needs PostgreSQL 15 or later; $(PG_CONFIG) is that of $(MAJORVERSION))
endif

# Needs signalfd, timerfd and /proc.
ifeq ($(PORTNAME), linux)
all: $(EXEC)
install: install-exec
endif

$(EXEC_OBJS): override CPPFLAGS := -I$(includedir) $(CPPFLAGS)
$(EXEC_OBJS): $(srcdir)/Makefile $(srcdir)/exec/redlock_exec.h

$(EXEC): $(EXEC_OBJS)
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDFLAGS_EX) -L$(libdir) -lpq -o $@

install-exec: $(EXEC) installdirs-exec
	$(INSTALL_PROGRAM) $(EXEC) '$(DESTDIR)$(bindir)/redlock-exec'

installdirs: installdirs-exec
installdirs-exec:
	$(MKDIR_P) '$(DESTDIR)$(bindir)'

uninstall: uninstall-exec
uninstall-exec:
	rm -f '$(DESTDIR)$(bindir)/redlock-exec'

.PHONY: install-exec installdirs-exec uninstall-exec

# README.md links to docs/, and a page there to monitoring/, so all are installed together.
document_kinds = $(notdir $(patsubst %/,%,$(wildcard $(srcdir)/docs/*/)))
monitoring_kinds = $(notdir $(patsubst %/,%,$(wildcard $(srcdir)/monitoring/*/)))
install: install-docs drop-bitcode
install-docs:
	$(MKDIR_P) $(addprefix '$(DESTDIR)$(docdir)'/redlock_pg/docs/,. $(document_kinds)) \
		$(addprefix '$(DESTDIR)$(docdir)'/redlock_pg/monitoring/,. $(monitoring_kinds))
	$(INSTALL_DATA) $(srcdir)/README.md $(srcdir)/CHANGELOG.md '$(DESTDIR)$(docdir)/redlock_pg/'
	$(INSTALL_DATA) $(wildcard $(srcdir)/docs/*.md) '$(DESTDIR)$(docdir)/redlock_pg/docs/'
	for kind in $(document_kinds); do \
		$(INSTALL_DATA) $(srcdir)/docs/$$kind/*.md '$(DESTDIR)$(docdir)/redlock_pg/docs/'$$kind || exit 1; \
	done
	$(INSTALL_DATA) $(wildcard $(srcdir)/monitoring/*.*) '$(DESTDIR)$(docdir)/redlock_pg/monitoring/'
	for kind in $(monitoring_kinds); do \
		$(INSTALL_DATA) $(srcdir)/monitoring/$$kind/* '$(DESTDIR)$(docdir)/redlock_pg/monitoring/'$$kind || exit 1; \
	done

# Removes the bitcode of an older version.
drop-bitcode:
	rm -rf '$(DESTDIR)$(bitcodedir)/redlock_pg' '$(DESTDIR)$(bitcodedir)/redlock_pg.index.bc'

uninstall: uninstall-docs drop-bitcode
uninstall-docs:
	rm -rf '$(DESTDIR)$(docdir)/redlock_pg'

dist:
	$(srcdir)/scripts/dist.sh

.PHONY: install-docs drop-bitcode uninstall-docs dist

$(OBJS): $(srcdir)/Makefile $(wildcard $(srcdir)/src/*/*.h)

# The assertions of core and guard are for their tests, and for builds with PostgreSQL's assertions.
ifeq (,$(findstring USE_ASSERT_CHECKING,$(COPT)))
src/protocol/core.o src/protocol/core_acquire.o src/protocol/core_debts.o src/protocol/core_renew.o src/protocol/guard.o: override CFLAGS += -DNDEBUG
endif

UNIT_CC = $(CC) -std=c99 -Wall -Wextra -Werror -g -Isrc

CORE = core core_acquire core_debts core_renew
CORE_FILES = $(CORE:%=src/protocol/%.c)

# what src/broker/script.c needs, without a server
SCRIPT_FILES = src/broker/script.c src/protocol/lua.c src/protocol/lua_text.c src/protocol/probe.c src/protocol/rules.c src/protocol/value.c src/protocol/waiters.c src/protocol/waiting_hosts.c src/protocol/words.c src/shared/text.c test/unit/server.c

UNIT_TESTS = $(patsubst %,test/unit/%_test,core driver entry force_release guard hearing holder hosts inspect_many inspection joint local_inspect local_names local_node local_notes lost_vote node_error node_index node_status overlap pattern permits probe probe_budget release_queue rules run_note scopes script settling several standing steps url value waiters waiting_hosts wish words)

test/unit/core_test: test/unit/laws.c $(CORE_FILES)
test/unit/driver_test: src/driver/driver.c src/driver/turns.c $(patsubst %,src/protocol/%.c,hearing release_queue rules settling waiters wish) $(CORE_FILES)
test/unit/entry_test: src/protocol/entry.c src/protocol/rules.c src/protocol/wish.c
test/unit/force_release_test: src/protocol/force_release.c src/protocol/inspection.c src/protocol/value.c $(CORE_FILES)
test/unit/guard_test: src/protocol/guard.c $(CORE_FILES)
test/unit/hearing_test: src/protocol/hearing.c $(CORE_FILES)
test/unit/holder_test: src/shared/holder.c src/shared/text.c
test/unit/hosts_test: src/protocol/hosts.c src/protocol/words.c src/protocol/overlap.c $(CORE_FILES)
test/unit/inspect_many_test: src/protocol/inspect_many.c src/protocol/words.c $(CORE_FILES)
test/unit/inspection_test: src/protocol/inspection.c src/protocol/value.c $(CORE_FILES)
test/unit/joint_test: test/unit/laws.c $(CORE_FILES)
test/unit/local_inspect_test: src/protocol/local_inspect.c src/protocol/local_node.c
test/unit/local_notes_test: src/protocol/local_notes.c src/protocol/run_note.c src/protocol/words.c
test/unit/local_names_test: src/protocol/local_names.c src/protocol/local_node.c
test/unit/local_node_test: src/protocol/local_node.c
test/unit/node_status_test: src/shared/node_status.c test/unit/server.c $(CORE_FILES)
test/unit/lost_vote_test: src/protocol/guard.c src/protocol/local_node.c $(CORE_FILES)
test/unit/overlap_test: src/protocol/overlap.c $(CORE_FILES)
test/unit/pattern_test: src/protocol/pattern.c
test/unit/permits_test: src/protocol/permits.c
test/unit/probe_budget_test: src/protocol/probe_budget.c
test/unit/probe_test: src/protocol/probe.c
test/unit/release_queue_test: src/protocol/release_queue.c $(CORE_FILES)
test/unit/rules_test: src/protocol/rules.c
test/unit/scopes_test: src/protocol/scopes.c
test/unit/run_note_test: src/protocol/run_note.c src/protocol/words.c
test/unit/script_test: $(SCRIPT_FILES)
test/unit/settling_test: src/protocol/settling.c $(CORE_FILES)
test/unit/several_test: src/protocol/several.c
test/unit/node_error_test: src/protocol/node_error.c
test/unit/node_index_test: src/protocol/node_index.c
test/unit/standing_test: src/protocol/standing.c src/protocol/hosts.c src/protocol/words.c src/protocol/overlap.c $(CORE_FILES)
test/unit/steps_test: src/protocol/steps.c src/protocol/hosts.c src/protocol/words.c src/protocol/overlap.c $(CORE_FILES)
test/unit/value_test: src/protocol/value.c
test/unit/waiters_test: src/protocol/waiters.c
test/unit/waiting_hosts_test: src/protocol/waiting_hosts.c src/protocol/words.c
test/unit/wish_test: src/protocol/wish.c
test/unit/words_test: src/protocol/words.c
test/unit/url_test: src/shared/url.c src/shared/text.c

# Programs that are not pure need PostgreSQL's headers and libraries, and its sanitizers if any, but
# no server.  Some libraries cannot be part of a position-independent program.
NOT_PURE = test/unit/node_status_test test/unit/script_test test/fuzz/messages_fuzz test/fuzz/replies_fuzz
$(NOT_PURE): SERVER_FLAGS = -D_GNU_SOURCE -DUSE_ASSERT_CHECKING \
	-Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers \
	-isystem $(includedir_server) $(filter -fsanitize% -fno-sanitize%,$(CFLAGS))
$(NOT_PURE): SERVER_LIBS = \
	-no-pie -L$(libdir) -L$(pkglibdir) -lpgcommon -lpgport -lhiredis

$(UNIT_TESTS): %: %.c $(wildcard src/*/*.h test/unit/*.h)
	mkdir -p $(@D)
	$(UNIT_CC) $(SERVER_FLAGS) -o $@ $(filter %.c,$^) $(SERVER_LIBS)

unit: $(UNIT_TESTS) test/unit/lua_text.t test/unit/next_version.t test/unit/makefile.t test/unit/dist.t
	prove -e '' $^

.PHONY: unit

# Targets of libFuzzer, which only clang has.
FUZZ_WARNINGS = -Wall -Wextra -Werror
FUZZ_OPTIMIZE = -O1
FUZZ_CC = clang -std=c99 $(FUZZ_WARNINGS) -g $(FUZZ_OPTIMIZE) -Isrc \
	-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
FUZZ_SECONDS ?= 5
FUZZERS = $(patsubst %,test/fuzz/%_fuzz,errors holder hosts inspect_many inspection marks messages replies run_note url value words)

test/fuzz/errors_fuzz: src/protocol/node_error.c src/shared/text.c
test/fuzz/holder_fuzz: src/shared/holder.c src/shared/text.c
test/fuzz/hosts_fuzz: src/protocol/hosts.c src/protocol/overlap.c src/protocol/words.c $(CORE_FILES)
test/fuzz/inspect_many_fuzz: src/protocol/inspect_many.c src/protocol/words.c $(CORE_FILES)
test/fuzz/inspection_fuzz: src/protocol/inspection.c src/protocol/value.c $(CORE_FILES)
test/fuzz/marks_fuzz: src/protocol/steps.c src/protocol/hosts.c src/protocol/overlap.c src/protocol/words.c $(CORE_FILES)
test/fuzz/messages_fuzz test/fuzz/replies_fuzz: $(SCRIPT_FILES)
test/fuzz/run_note_fuzz: src/protocol/run_note.c src/protocol/words.c
test/fuzz/url_fuzz: src/shared/text.c src/shared/url.c
test/fuzz/value_fuzz: src/protocol/value.c src/protocol/words.c
test/fuzz/words_fuzz: src/protocol/words.c

$(FUZZERS): %: %.c test/fuzz/fuzz.h $(wildcard src/*/*.h)
	$(FUZZ_CC) $(SERVER_FLAGS) -o $@ $(filter %.c,$^) $(SERVER_LIBS)

fuzz_programs: $(FUZZERS)

fuzz: fuzz_programs
	prove test/fuzz/fuzz.pl :: --seconds $(FUZZ_SECONDS)

fuzz_mutants:
	prove test/fuzz/mutants.pl

.PHONY: fuzz fuzz_mutants fuzz_programs

# Both directories have a node.h: the simulator's comes first.
SIM_OPTIMIZE = -O2
SIM_CC = $(CC) -std=c99 -Wall -Wextra -Werror $(SIM_OPTIMIZE) -g -Itest/sim -Itest/unit -Isrc
SIM_FILES = sim world plan story node wire word host host_world reload peer session operator fault force check debt
SIM_PURE = $(patsubst %,src/protocol/%,$(CORE) entry force_release guard hearing inspection local_inspect local_node node_index release_queue rules settling value waiters wish) \
	src/driver/driver src/driver/turns
SIM_HEADERS = $(wildcard test/sim/*.h) test/unit/laws.h test/unit/dice.h src/protocol/lua.h $(filter-out $(CORE:%=src/protocol/%.h),$(SIM_PURE:%=%.h)) src/protocol/core.h src/protocol/core_internal.h src/driver/driver_lease.h src/driver/driver_world.h

test/sim/sim: $(SIM_FILES:%=test/sim/%.c) test/unit/laws.c $(SIM_PURE:%=%.c) $(SIM_HEADERS)
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/crowd: test/sim/crowd.c test/sim/node.c src/driver/turns.c $(patsubst %,src/protocol/%.c,$(CORE) hearing local_inspect local_node rules waiters) $(SIM_HEADERS)
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/deadlock: test/sim/deadlock.c src/protocol/probe.c src/protocol/probe.h test/sim/invariant.h test/unit/dice.h
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/together: test/sim/together.c src/protocol/several.c src/protocol/several.h test/sim/invariant.h test/unit/dice.h
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/permits: test/sim/permits.c test/sim/kinds.c $(patsubst %,src/protocol/%.c,$(CORE) guard local_node permits) $(patsubst %,src/protocol/%.h,core guard local_node lua permits) test/sim/kinds.h test/sim/invariant.h test/unit/dice.h
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/changes: test/sim/changes.c $(patsubst %,src/protocol/%.c,$(CORE) hosts overlap standing steps words) $(patsubst %,src/protocol/%.h,core hosts lua overlap standing steps words) test/sim/invariant.h test/unit/dice.h
	$(SIM_CC) -o $@ $(filter %.c,$^)

test/sim/conformance: test/sim/conformance.c test/sim/cases.c test/sim/node.c src/protocol/local_inspect.c src/protocol/local_node.c src/protocol/lua.c src/protocol/lua_text.c $(SIM_HEADERS)
	$(SIM_CC) -o $@ $(filter %.c,$^) -lhiredis

sim: test/sim/sim
	prove -e '' test/sim/sim :: --tap --seconds 20 --jobs 2

crowd: test/sim/crowd
	prove -e '' test/sim/crowd

deadlock: test/sim/deadlock
	prove -e '' test/sim/deadlock

together: test/sim/together
	prove -e '' test/sim/together

permits: test/sim/permits
	prove -e '' test/sim/permits

changes: test/sim/changes
	prove -e '' test/sim/changes

# all simulators but sim, which uses two processors by itself
WORLDS = $(patsubst %,test/sim/%,crowd deadlock together permits changes)
worlds: $(WORLDS)
	prove -j 2 -e '' $^

# The simulators with sanitizers: a write beyond an array in a simulator looks like a fault of the
# simulated code, or hides one.  Seed 11974706 begins many requests.
SIMULATORS = test/sim/sim $(WORLDS)
sanitized:
	rm -f $(SIMULATORS)
	$(MAKE) $(SIMULATORS) SIM_CC="$(SIM_CC) -fsanitize=address,undefined -fno-sanitize-recover=all"
	prove -e '' test/sim/sim :: --tap --from 11971000 --schedules 6000 --jobs 2
	prove -j 2 -e '' $(filter-out test/sim/changes,$(WORLDS))
	prove -e '' test/sim/changes :: 30
	rm -f $(SIMULATORS)

mutants:
	prove test/sim/mutants.pl :: --cc "$(CC)"

conformance: test/sim/conformance
	prove -e '' test/sim/conformance

branches:
	prove test/sim/branches.pl

model:
	model/run


SHARE ?= 1/1
script_mutants: test/sim/conformance
	prove test/sim/script_mutants.pl :: --share $(SHARE)

.PHONY: sim crowd deadlock together permits changes worlds sanitized mutants conformance script_mutants branches model

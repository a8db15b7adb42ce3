# redlock-exec runs a command under a lock: exit codes, environment, descriptors, signals, options.
#
# Protects from: a code of the command taken for a code of redlock-exec, or lost; an endless run,
# because the caller ignores SIGCHLD; a standard descriptor closed by the caller, and taken by the
# connection; two runs at a time; a token missing or of another lock; a command inheriting the
# connection, blocked signals or a closed standard input; a signal ending redlock-exec and not the
# command; a lock released while processes of the group still run, or kept afterwards; a role's
# statement_timeout ending the wait; a server giving up the connection, and so releasing the lock,
# while the lease lasts; a lock granted to a waiter whose connection has died; a reader ended in
# spite of renewals, since the ttl of the lease differs from the reader's ttl; a check that waits
# for other sessions; processes hidden from the /proc of another pid namespace, or by hidepid; an
# extension not found in its schema; another lock in a database of another encoding; a lock taken
# for a missing command.

use strict;
use warnings;

use ExecTest;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '10s'\nlisten_addresses = '127.0.0.1'");
my $other = session($host);

sub output_of
{
	my ($arguments, $command, %options) = @_;
	my $run = exec_start($host, $arguments, $command, %options);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($run->code, 0, 'the command succeeds');
	return $run->out;
}

sub is_free
{
	my ($name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($other->query("BEGIN; SELECT redlock_try('$name'); COMMIT"), 't', $description);
	return;
}

# ---- exit codes ----

is(exec_code($host, ['job'], [ 'sh', '-c', "exit $_" ]), $_, "the command's exit code $_") foreach 0, 1, 123, 255;
is(exec_code($host, ['job'], [ 'sh', '-c', 'kill -KILL $$' ]), 128 + 9, 'a signal ends the command');
is(exec_code($host, ['job'], ['/nowhere/command']), 127, 'there is no such command');
is(exec_code($host, ['job'], ['/']), 126, 'the command is no program');
is(exec_code($host, [ '--hold-at-least=1h', 'typo' ], [$_]), 127, "there is no command $_") foreach 'no-such-command', '/nowhere/command';
append_to_file(beat_path('no_program'), "echo no\n");
{
	local $ENV{PATH} = beat_path('') =~ s/[^\/]*$//r . ":$ENV{PATH}";
	is(exec_code($host, [ '--hold-at-least=1h', 'typo' ], [ beat_path('no_program') =~ s/.*\///r ]), 126, 'a file of PATH is no program');
}
is(exec_code($host, ['typo'], ['true']), 0, 'a missing command takes no lock');
is(exec_start($host, ['job'], [ 'sh', '-c', 'exit 3' ], ignore => 'CHLD')->code, 3, 'the caller ignores SIGCHLD');
is_free('job', 'the lock is free after all of these');

my $run = exec_start($host, [ '-p', '1', '-h', '/nowhere', 'job' ], ['true']);
is($run->code, 125, 'no connection');
like($run->err, qr/^redlock-exec: .*failed/, 'with its reason');
$run = exec_start($host, [ '-p', '1', '-h', '/nowhere,/elsewhere', 'job' ], ['true']);
like($run->err, qr{/nowhere.*/elsewhere}s, '... and of each host') if is($run->code, 125, 'no connection to either host');

foreach my $wrong (
	[ [], ['true'], qr/name of the lock is missing/ ],
	[ [ 'job', 'word' ], ['true'], qr/one name of a lock must stand before "--"/ ],
	[ ['job'], undef, qr/command is missing/ ],
	[ [ '--nonsense', 'job' ], ['true'], qr/unknown option "--nonsense"/ ],
	[ [ '-qxq', 'job' ], ['true'], qr/unknown option "-x"/ ],
	[ [ '--skipped-code=256', 'job' ], ['true'], qr/from 0 to 255/ ],
	[ [ '--wait=soon', 'job' ], ['true'], qr/invalid input syntax for type interval: "soon"/ ],
	[ [ '--wait=-1s', 'job' ], ['true'], qr/wait must not be negative\nHINT:  Use --wait=forever to wait/ ],
	[ [ '--permits=0', 'job' ], ['true'], qr/permits/ ],
	[ [ '--kill-after=-1s', 'job' ], ['true'], qr/must not be negative/ ],
	[ [ '--hold-at-least=1min', '--kill-after=4s', 'job' ], ['true'], qr/at most a third of the ttl, which is 10000 ms/ ],
	[ [ '--shared', '--hold-at-least=1s', 'job' ], ['true'], qr/can't be combined/ ],
	[ [ 'a' x 256 ], ['true'], qr/too long/ ])
{
	my ($arguments, $command, $message) = @$wrong;
	my $run = exec_start($host, $arguments, $command);

	is($run->code, 120, 'usage: ' . substr("@$arguments", 0, 60));
	like($run->err, $message, 'with its reason');
}
is_free('job', 'no lock is left');

like(output_of(['--help']), qr/^Usage:\n  redlock-exec .*^  123  lost/ms, '--help');
like(output_of(['--version']), qr/^redlock-exec \(redlock_pg\) \d/, '--version');

# ---- skipped, and no quorum ----

$other->query("SELECT redlock_acquire('busy', scope => 'session')");
$run = exec_start($host, ['busy'], ['true']);
is($run->code, 121, 'skipped: another session holds the lock');
like($run->err, qr/busy.*^DETAIL:/ms, 'with the holder');
$run = exec_start($host, [ '-q', '-E', '0', '--wait=10ms', 'busy' ], [ 'echo', 'ran' ]);
is($run->code, 0, 'skipped, with a code of our own, after a wait');
is($run->err . $run->out, '', 'quiet, and the command did not run');

# a role's limits are for the role's queries
$host->safe_psql('postgres', "ALTER ROLE CURRENT_USER SET statement_timeout = '100ms'");
$run = exec_start($host, [ '--wait=forever', 'busy' ], [ 'echo', 'ran' ]);
$host->safe_psql('postgres', 'ALTER ROLE CURRENT_USER RESET statement_timeout');
my $waiting = "FROM redlock_locks JOIN pg_stat_activity a USING (pid)"
  . " WHERE resource = 'busy' AND redlock_locks.state = 'queued' AND clock_timestamp() > query_start + '200 ms'::interval";
ok($host->poll_query_until('postgres', "SELECT count(*) = 1 $waiting"), 'a run waits for longer than statement_timeout');
is($host->safe_psql('postgres', "SELECT backend_xmin IS NULL $waiting"), 't', 'without a snapshot');
$other->query("SELECT redlock_release('busy')");
is($run->code, 0, 'and gets the lock');
is($run->out, "ran\n", '... and runs the command');

# a signal ends a wait
$other->query("SELECT redlock_acquire('busy', scope => 'session')");
$run = exec_start($host, [ '--wait=1h', 'busy' ], ['true']);
ok($host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE state = 'queued'"), 'it waits');
kill 'TERM', $run->pid;
is($run->code, 'signal 15', 'TERM ends it');
ok($host->poll_query_until('postgres', "SELECT count(*) = 0 FROM redlock_locks WHERE state = 'queued'"),
	'and the server notices');

# a signal also ends a wait of process 1, which ignores signals without a handler
SKIP:
{
	my @own_pids = qw(unshare --map-current-user --pid --fork);
	my @as_first = (@own_pids, '--mount-proc');

	skip 'no namespaces for users', 5 if system("@own_pids true >/dev/null 2>&1") != 0;
	# otherwise the group would seem to end with its leader
	$run = exec_start($host, ['job'], ['true'], within => \@own_pids);
	is($run->code, 125, '/proc is of another pid namespace');
	like($run->err, qr/does not show.*^HINT:.*--mount-proc/ms, 'with the reason and the way out');

	skip 'no /proc for namespaces of users', 3 if system("@as_first true >/dev/null 2>&1") != 0;
	$run = exec_start($host, [ '--wait=1h', 'busy' ], ['true'], within => \@as_first);
	ok($host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE state = 'queued'"), 'process 1 waits');
	kill 'TERM', split ' ', slurp_file('/proc/' . $run->pid . '/task/' . $run->pid . '/children');
	is($run->code, 143, 'TERM ends it');
	ok($host->poll_query_until('postgres', "SELECT count(*) = 0 FROM redlock_locks WHERE state = 'queued'"),
		'and the server notices');
}
$other->query("SELECT redlock_release('busy')");

$_->pause foreach @nodes[ 0, 1 ];
$run = exec_start($host, ['job'], ['true']);
is($run->code, 122, 'no quorum');
like($run->err, qr/quorum/, 'with the reason');
$_->resume foreach @nodes[ 0, 1 ];
wait_nodes_ready($host, 3);

# ---- what the command gets ----

my ($token) = output_of(['job'], [ 'sh', '-c', 'echo $REDLOCK_TOKEN' ]) =~ /^(\d+)$/;
cmp_ok($token // 0, '<', output_of(['job'], [ 'sh', '-c', 'echo $REDLOCK_TOKEN' ]), 'tokens grow');

append_to_file(beat_path('input'), "some input\n");
is(output_of(['job'], ['cat'], stdin => beat_path('input')), "some input\n", 'standard input');
is(output_of([ 'job', '--wait=1s' ], [ 'echo', '--', '-d', 'x' ]), "-- -d x\n",
	'options after the name are ours, words after the first -- are not');
unlike(output_of(['job'], [ 'ls', '-l', '/proc/self/fd' ]),
	qr/socket:|anon_inode/, 'no descriptor of ours, not even that of the connection');
my @masks = ('grep', '-E', '^Sig(Blk|Ign)', '/proc/self/status');
my $bare = do { local $SIG{PIPE} = 'DEFAULT'; (run_command(\@masks))[0] };
is(output_of(['job'], \@masks), "$bare\n", 'the same signals are blocked and ignored as without redlock-exec');
is( output_of(['job'], [ 'sh', '-c', 'ps -o pgid= -p $$ | tr -d " "; echo $$' ]) =~ s/^(\d+)\n\1\n$/leads/r,
	'leads', 'a process group of its own');

# the number of a standard descriptor that the caller has closed must stay free
foreach my $closed (0 .. 2)
{
	my $run = exec_start($host, ['job'], beats("closed$closed"), closed => $closed);
	my $checks = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redlock-exec'"
	  . " AND state = 'idle' AND query LIKE '%redlock_check%'";

	wait_until(sub { $run->done || $other->query($checks) }, 'the keeper has asked');
	stop_beats("closed$closed", 5);
	is($run->code, 5, "descriptor $closed is closed");
}
is_free('job', 'the lock is free after all of these');

# ---- terms ----

is(exec_code($host, [ '--hold-at-least=1h', 'held' ], ['true']), 0, '--hold-at-least: the first run');
is(exec_code($host, ['held'], ['true']), 121, 'the second is skipped');

{
	my @first = map { exec_start($host, [ '--permits=2', 'pool' ], beats("permit$_")) } 1, 2;

	wait_until(sub { beat_log("permit$_") =~ /^start/m }, "holder $_ of two permits runs") foreach 1, 2;
	is(exec_code($host, [ '--permits=2', 'pool' ], ['true']), 121, 'there is no third permit');
	stop_beats("permit$_", $_) foreach 1, 2;
	is($first[$_ - 1]->code, $_, "holder $_ ends") foreach 1, 2;

	my $reader = exec_start($host, [ '--shared', 'table' ], beats('reader'));
	wait_until(sub { beat_log('reader') =~ /^start/m }, 'a reader runs');
	is(exec_code($host, [ '--shared', 'table' ], ['true']), 0, 'another reader runs');
	is(exec_code($host, ['table'], ['true']), 121, 'a writer does not');
	stop_beats('reader', 0);
	is($reader->code, 0, 'the reader ends');

	# a reader gets the ttl of the host's first reader
	$other->query("SELECT redlock_acquire('brief', ttl => '3 s', mode => 'shared', scope => 'session')");
	$reader = exec_start($host, [ '--shared', 'brief' ], beats('brief'));
	wait_until(sub { $reader->done || beat_log('brief') =~ /^start/m && last_beat_us('brief') > begin_us('brief') + 3500000 },
		'a reader whose lease has a shorter ttl than its own runs for longer than this ttl');
	stop_beats('brief', 9);
	is($reader->code, 9, 'and comes to its end');
	$reader = exec_start($host, [ '--shared', '--kill-after=2s', 'brief' ], ['true']);
	is($reader->code, 120, '--kill-after must suit the ttl of the lease');
	like($reader->err, qr/at most a third of the ttl, which is 3000 ms/, 'with the reason');
	$other->query("SELECT redlock_release('brief')");
}

# ---- signals ----

my @signals = qw(HUP INT QUIT TERM USR1 USR2);
$run = exec_start($host, ['job'], beats('signals', @signals));
wait_until(sub { beat_log('signals') =~ /^start/m }, 'a command that catches signals runs');
foreach my $name (@signals)
{
	kill $name, $run->pid;
	wait_until(sub { beat_log('signals') =~ /^$name$/m }, "$name is passed on");
}
my ($pid) = beat_log('signals') =~ /^start (\d+)/m;
kill 'TSTP', $run->pid;
wait_until(sub { slurp_file("/proc/$pid/stat") =~ /\) T / }, 'TSTP stops the command');
isnt(session_count($host), 0, 'its session is there');
kill 'CONT', $run->pid;
wait_until(sub { slurp_file("/proc/$pid/stat") !~ /\) T / }, 'CONT continues the command');
kill 'STOP', $pid;
wait_until(sub { slurp_file("/proc/$pid/stat") =~ /\) T / }, 'the command is stopped');
ok($run->keeper, 'the keeper is there');
kill 'TERM', $run->keeper;
kill 'CONT', $pid;
stop_beats('signals', 7);
is($run->code, 7, 'all that changes nothing of the exit code');

$run = exec_start($host, ['job'], beats('dies'));
wait_until(sub { beat_log('dies') =~ /^start/m }, 'a command that catches nothing runs');
kill 'TERM', $run->pid;
is($run->code, 128 + 15, 'TERM ends it');

# ---- the connection ----

# A name in UTF-8 means the same lock from a database of any encoding.
$other->query("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
$host->safe_psql('latin', 'CREATE EXTENSION redlock_pg');
$other->query("SET client_encoding = 'UTF8'; BEGIN; SELECT redlock_acquire('gr\xc3\xb6\xc3\x9fe')");
is(exec_code($host, [ '-d', $host->connstr('latin'), "gr\xc3\xb6\xc3\x9fe" ], ['true']), 121, 'UTF-8, in a database in LATIN1');
{
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	is(exec_code($host, [ '-d', $host->connstr('latin'), "gr\xf6\xdfe" ], ['true']), 121, '... and as PGCLIENTENCODING says');
}
is(exec_code($host, [ '-d', $host->connstr('latin') . ' client_encoding=LATIN1', "gr\xf6\xdfe" ], ['true']), 121,
	'... and as the connection string says');
$other->query('COMMIT');

# The extension may be in any schema, and the lock is the same.
$other->query('CREATE DATABASE apart TEMPLATE template0');
$host->safe_psql('apart', 'CREATE SCHEMA "Odd, schema"; CREATE EXTENSION redlock_pg SCHEMA "Odd, schema"');
my $beats = exec_start($host, [ '-d', $host->connstr('apart'), 'schema' ], beats('schema'));
wait_until(sub { $beats->done || beat_log('schema') =~ /^start/m }, 'a command runs, with the extension in a schema of its own');
is(exec_code($host, ['schema'], ['true']), 121, 'the lock counts in other databases');
stop_beats('schema', 6);
is($beats->code, 6, 'and the command comes to its end');
is($beats->err, '', 'with the release confirmed');
$run = exec_start($host, [ '-d', $host->connstr('template1'), 'job' ], ['true']);
is($run->code, 125, 'a database without the extension');
like($run->err, qr/database "template1" lacks the extension redlock_pg\nHINT:/, 'with the reason and the way out');
$other->query('CREATE DATABASE former TEMPLATE template0');
$host->safe_psql('former', "CREATE EXTENSION redlock_pg VERSION '0.1.0'");
$run = exec_start($host, [ '-d', $host->connstr('former'), 'job' ], ['true']);
is($run->code, 125, 'a database with the extension of 0.1.0');
like($run->err, qr/has version 0\.1\.0 .*HINT:  Run ALTER EXTENSION redlock_pg UPDATE/s, 'with the reason and the way out');

# The server keeps a silent client until the ttl is over.
$other->query(<<'SQL');
CREATE TABLE limits (name text, setting text);
ALTER FUNCTION redlock_check(text) RENAME TO watched_check;
CREATE FUNCTION redlock_check(resource text) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.limits SELECT s.name, s.setting FROM pg_settings s
     WHERE s.name IN ('tcp_keepalives_idle', 'tcp_user_timeout');
    RETURN public.watched_check(resource);
END $$;
ALTER PROCEDURE redlock_lock RENAME TO watched_lock;
CREATE PROCEDURE redlock_lock(resource text, wait interval, ttl interval, hold_at_least interval, mode text, permits integer)
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.limits SELECT 'CALL ' || s.name, s.setting FROM pg_settings s
     WHERE s.name IN ('tcp_keepalives_idle', 'tcp_user_timeout');
    CALL public.watched_lock($1, wait => $2, ttl => $3, hold_at_least => $4, mode => $5, permits => $6);
END $$
SQL

# Returns the limits at the grant and at all checks.  The first check comes before the command begins.
sub limits_of
{
	my ($settings, @arguments) = @_;
	my $options = join ' ', map { "-c $_" } @$settings;

	$other->query('TRUNCATE limits');
	output_of([ '-d', "dbname=postgres options='$options'", '-h', '127.0.0.1', '-p', $host->port, @arguments, 'job' ], ['true']);
	return $other->query("SELECT string_agg(DISTINCT name || ' ' || setting, ', ' ORDER BY name || ' ' || setting) FROM limits");
}

sub limits
{
	my ($idle, $timeout) = @_;
	return join ', ', map { ("${_}tcp_keepalives_idle $idle", "${_}tcp_user_timeout $timeout") } 'CALL ', '';
}

is(limits_of([qw(tcp_keepalives_idle=1 tcp_user_timeout=100)]), limits(11, 10001), 'limits shorter than the ttl are raised');
is(limits_of([qw(tcp_keepalives_idle=15 tcp_user_timeout=15000)], '--ttl=20s'), limits(21, 20001), 'the ttl of the options counts');
is(limits_of([qw(tcp_keepalives_idle=300 tcp_user_timeout=0)]), limits(300, 10001), 'a longer limit stays; 0 would be the limit of the kernel');
is(limits_of([]), limits(11, 10001), 'without a limit the ttl counts: a waiter whose connection has died must end');
$other->query("SELECT redlock_acquire('job', ttl => '25 s', mode => 'shared', scope => 'session')");
is(limits_of([qw(tcp_keepalives_idle=1 tcp_user_timeout=100)], '--shared'),
	'CALL tcp_keepalives_idle 11, CALL tcp_user_timeout 10001, tcp_keepalives_idle 26, tcp_user_timeout 25001',
	'of a reader the ttl of the lease');
$other->query("SELECT redlock_release('job')");
$other->query('DROP PROCEDURE redlock_lock; ALTER PROCEDURE watched_lock RENAME TO redlock_lock');
$other->query('DROP FUNCTION redlock_check(text); ALTER FUNCTION watched_check(text) RENAME TO redlock_check');

# A deferrable check would wait for a writer of another session.
$run = exec_start($host, [ '-d', "dbname=postgres options='-c default_transaction_isolation=serializable"
		  . " -c default_transaction_read_only=on -c default_transaction_deferrable=on'",
		'-h', $host->host, '-p', $host->port, '--ttl=2s', 'job' ], beats('deferred'));
wait_until(sub { $run->done || beat_log('deferred') =~ /^start/m }, 'a command of a role with deferrable transactions runs');
$other->query('BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO limits VALUES (1)');
my $begun = last_beat_us('deferred');
wait_until(sub { $run->done || last_beat_us('deferred') > $begun + 3_000_000 }, 'and goes on for longer than a ttl beside a writer');
$other->query('ROLLBACK');
stop_beats('deferred', 7);
is($run->code, 7, '... to its end');

# ---- processes that outlive the command ----

SKIP:
{
	skip 'no python3 here', 3 unless -x '/usr/bin/python3';
	my $go = beat_path('thread') . '.go';
	my $thread = "import ctypes, os, threading, time\n"
	  . "def wait():\n  while not os.path.exists('$go'): time.sleep(0.01)\n"
	  . "threading.Thread(target=wait).start()\nctypes.CDLL(None).pthread_exit(None)\n";
	$run = exec_start($host, ['job'], [ 'sh', '-c', '/usr/bin/python3 -c "$1" & echo $! && exit 5', 'sh', $thread ]);
	# the file may not be there yet
	wait_until(sub { (eval { $run->out } // '') =~ /^(\d+)\n/ && slurp_file("/proc/$1/stat") =~ /\) Z / },
		'the first thread of a process has ended');
	is(exec_code($host, ['job'], ['true']), 121, 'the lock is held while another thread runs');
	append_to_file($go, '');
	is($run->code, 5, 'and released afterwards');
}

SKIP:
{
	my @hidden = (qw(unshare --map-root-user --pid --fork --mount sh -c),
		'mount -t proc -o hidepid=1 proc /proc && exec unshare "$@"', 'sh', "--map-user=$<");
	skip 'no namespaces for users, or no python3', 3
	  if !-x '/usr/bin/python3' || !run_log([ @hidden, 'true' ]);
	my $go = beat_path('hidden') . '.go';
	my $hidden = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0)\nopen('$go.ready', 'w')\n"
	  . "while not os.path.exists('$go'): time.sleep(0.01)\n";
	$run = exec_start($host, ['job'], [ 'sh', '-c', '/usr/bin/python3 -c "$1" & exit 5', 'sh', $hidden ], within => \@hidden);
	wait_until(sub { -e "$go.ready" || $run->done }, 'a process is hidden by hidepid');
	is(exec_code($host, ['job'], ['true']), 121, 'the lock is held while this process runs');
	append_to_file($go, '');
	is($run->code, 5, 'and released afterwards');
}

my $late = beat_path('late');
$run = exec_start($host, ['job'],
	[ 'sh', '-c', "sh -c 'until [ -e $late.go ]; do sleep 0.01; done; echo late >$late' & exit 5" ]);
ok($host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'job' AND state = 'held'"),
	'the lock is held');
is(exec_code($host, ['job'], ['true']), 121, 'and stays so while a process of the group runs');
append_to_file("$late.go", '');
is($run->code, 5, 'then the exit code is that of the command');
is(slurp_file($late), "late\n", 'and the process has come to its end');

is(session_count($host), 0, 'no session is left');
is($other->query('SELECT count(*) FROM redlock_locks WHERE pid IS NOT NULL'), '0', 'and no lock');
$other->quit;

done_testing();

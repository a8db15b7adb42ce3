# The node inside the server: redlock.nodes = 'local', without any Redis.
#
# Protects from: a function working with Redis nodes only; a waiter not told of a release; a second
# holder, a lost lease or an early end of hold_at_least, when the broker is replaced; a new broker
# leaving requests in its queue until another event wakes the broker; tokens out of order after a
# restart, or after the node forgot a name; memory growing with each name; a server with local by
# mistake, or beside other nodes; a log suggesting that local keeps other servers out; advice to set
# another node beside local; a full disk in memory blamed on other hosts or the network, or filling
# the log.

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

# A lease must outlive the pause between two brokers, also on a busy machine.
my $host = redlock_cluster('a', nodes => ['local'], conf => "redlock.ttl = '8s'\nredlock.max_ttl = '8s'\nrestart_after_crash = on");
my $other = redlock_cluster('b', nodes => ['local'], conf => "redlock.max_locks = 16");
my ($s, $t, $u, $v) = map { session($host) } 1 .. 4;

sub log_of { return slurp_file($_[0]->logfile); }

sub count_in_log
{
	my ($cluster, $pattern) = @_;
	return scalar(() = log_of($cluster) =~ /$pattern/g);
}

sub stat_of
{
	my ($column) = @_;
	return $host->safe_psql('postgres', "SELECT $column FROM redlock_stats");
}

# Waits until a session waits for this lock, in the broker or at the gate.
sub wait_for_waiter
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(
		sub {
			$host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = '$name' AND state IN ('waiting', 'queued')") > 0;
		},
		"a session waits for $name");
}

# ---- the setting, the views and the log ----

is($s->query('SHOW redlock.nodes'), 'local', 'the setting is shown');
is( $s->query('SELECT node, state, last_error, quarantine, list FROM redlock_nodes'),
	'local|ready|||now', 'one node, ready');
is($s->query('SELECT count(*), bool_and(self), bool_and(agrees) FROM redlock_hosts'), '1|t|t', 'this host, and no other');
is(count_in_log($host, 'redlock.nodes is local: no lock reaches beyond this server'), 1, 'the log says so once');

# ---- locks ----

my $token = $s->query("SELECT redlock_acquire('job', scope => 'session')");
cmp_ok($token, '>', 0, 'a lock is acquired');
is($t->query("SELECT redlock_try('job')"), 'f', 'another session does not get it');
is($s->query("SELECT redlock_fence('job') = redlock_token('job')"), 't', 'its token goes into the fence');
$t->send("SELECT redlock_acquire('job', scope => 'session')");
wait_for_waiter('job');
is($s->query("SELECT cluster_name, mode, sessions, waits > '0' FROM redlock_waiters('job')"), 'a|exclusive|1|t', 'and redlock_waiters tells of it');
$s->query("SELECT redlock_release('job')");
my $result = $t->result;
is($result->{state}, '', 'a session that waits gets the lock');
cmp_ok($result->{out}, '>', $token, 'with a later token');
is($t->query("SELECT redlock_release('job')"), 't', 'and releases it');

# ---- readers and writers ----

$s->query("SELECT redlock_acquire('shared', scope => 'session', mode => 'shared')");
$t->query("SELECT redlock_acquire('shared', scope => 'session', mode => 'shared')");
is($u->query("SELECT redlock_try('shared')"), 'f', 'two readers keep a writer out');
$u->send("SELECT redlock_acquire('shared', scope => 'session') > 0");
wait_for_waiter('shared');
$s->query("SELECT redlock_release('shared')");
ok(!$u->done, 'one reader is left');
$t->query("SELECT redlock_release('shared')");
is($u->result->{out}, 't', 'the writer comes after the last reader');
is($s->query("SELECT redlock_try('shared', mode => 'shared')"), 'f', 'and keeps readers out');
$u->query("SELECT redlock_release('shared')");

# ---- permits ----

foreach my $session ($s, $t)
{
	$session->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)");
}
is($u->query("SELECT redlock_try('pool', permits => 2)"), 'f', 'two permits are taken');
is($u->run("SELECT redlock_try('pool', permits => 3)")->{state}, '55000', 'another number of permits is an error');
is($u->run("SELECT redlock_try('pool')")->{state}, '55000', 'so is none');
my @turns = ($s, $t, $u);
foreach my $turn (1 .. 6)
{
	my ($first, $second, $third) = @turns;

	$third->send("SELECT redlock_acquire('pool', scope => 'session', permits => 2) > 0");
	wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'pool' AND pid = " . $third->pid) > 0 },
		'a session waits for a permit');
	$first->query("SELECT redlock_release('pool')");
	is($third->result->{out}, 't', "a released permit goes to the session that waits ($turn)");
	@turns = ($second, $third, $first);
}
$_->query('SELECT redlock_release_all()') foreach @turns;
wait_until(sub { $s->run("SELECT redlock_try('pool')")->{out} eq 't' }, 'the lock itself is free when all permits are');

# ---- looks, asks and forced releases ----

sub holder_of
{
	my ($name, $columns) = @_;
	return $t->query("SELECT $columns FROM redlock_holder('$name')");
}

is(holder_of('look', 'state, nodes, of_nodes'), 'free|0|1', 'a free lock');
is($t->query("SELECT redlock_is_locked('look')"), 'f', 'is not locked');
$s->query("SELECT redlock_acquire('look', scope => 'session')");
is( holder_of('look', "state, mode, cluster_name, database, role = current_user, pid, ttl > '0', nodes, since < now()"),
	'held|exclusive|a|postgres|t|' . $s->pid . '|t|1|t', 'a held lock, and its holder');
is($t->query("SELECT redlock_is_locked('look')"), 't', 'is locked');
is($t->query("SELECT node, value ~ 'host=', counter > 0, error IS NULL FROM redlock_inspect('look')"),
	'local|t|t|t', 'what the node keeps');
$u->query("SELECT redlock_acquire('page', scope => 'session', mode => 'shared')");
$v->query("SELECT redlock_acquire('page', scope => 'session', mode => 'shared')");
is(holder_of('page', "state, mode, reader_hosts = ARRAY[(SELECT host_id FROM redlock_hosts WHERE self)]"),
	'held|shared|t', 'readers of this host');
$u->query("SELECT redlock_acquire('seats', scope => 'session', permits => 3)");
is(holder_of('seats', 'state, permits, permits_taken'), 'held|3|1', 'one of three permits');
$s->query("SELECT redlock_acquire('kept', scope => 'session', hold_at_least => '1 min')");
$s->query("SELECT redlock_release('kept')");
wait_until(sub { holder_of('kept', "state, kept_until > now()") eq 'kept|t' }, 'a lock that is kept');
is( $t->query("SELECT string_agg(concat_ws(' ', resource, permit BETWEEN 1 AND 3, state, mode, pid), ', ' ORDER BY resource) FROM redlock_holders() WHERE mode = 'exclusive'"),
	join(', ', 'kept kept exclusive ' . $s->pid, 'look held exclusive ' . $s->pid, 'seats t held exclusive ' . $u->pid),
	'the list of locks');
is($t->query("SELECT string_agg(resource, ',') FROM redlock_holders('pa')"), 'page', 'of names that begin so');
# a list of 100 names takes several steps and several questions
$t->query("SELECT count(redlock_acquire('many ' || n, scope => 'session')) FROM generate_series(1, 100) n");
is($t->query("SELECT count(*), count(DISTINCT resource) FROM redlock_holders('many ')"), '100|100', 'many locks');
$t->query("SELECT redlock_release('many ' || n) FROM generate_series(1, 100) n");

$t->query("SELECT redlock_ask_release('look')");
wait_until(sub { $s->query("SELECT redlock_release_wanted('look')") eq 't' }, 'the holder learns of an ask');
$token = $s->query("SELECT redlock_token('look')");
$v->send("SELECT redlock_acquire('look', scope => 'session')");
wait_for_waiter('look');
like($t->query("SELECT redlock_force_release('look')"), qr/^cluster=.* pid=\d+/, 'a forced release names the holder');
cmp_ok($v->result->{out}, '>', $token, 'the lock goes to a session that waits, with a later token');
is($s->run("SELECT redlock_check('look')")->{state}, '40001', 'the holder has lost it');
is($v->query("SELECT redlock_release('look')"), 't', 'and the next holder has not');
$s->run("SELECT redlock_release('look')");
$t->query("SELECT redlock_force_release('seats')");
is($t->query("SELECT redlock_try('seats')"), 't', 'a forced release of permits');
wait_until(sub { $u->run("SELECT redlock_check('seats')")->{state} eq '40001' }, 'whose holder has lost the permit');
$t->query("SELECT redlock_force_release('page'), redlock_force_release('kept')");
is($t->query("SELECT redlock_try('page') AND redlock_try('kept')"), 't', 'of readers, and of a kept lock');
$t->query("CALL redlock_run('nightly', 'SELECT 1', record => true)");
wait_until(sub { $t->query("SELECT status, token > 0, pid, nodes FROM redlock_last_run('nightly')") eq 'succeeded|t|' . $t->pid . '|1' },
	'the last run of a job');
is($t->query("SELECT status IS NULL FROM redlock_last_run('look')"), 't', 'and of none');
$_->run('SELECT redlock_release_all()') foreach $s, $t, $u, $v;
$t->query("SELECT redlock_acquire('* of [all]', scope => 'session')");
is($t->query("SELECT resource FROM redlock_holders('* of [')"), '* of [all]', 'no character of a name is a pattern');
$t->query("SELECT redlock_release('* of [all]')");
my $lost = stat_of('lost');

# ---- hold_at_least ----

my $began = time;
$s->query("BEGIN; SELECT redlock_acquire('kept', hold_at_least => '2 s'); COMMIT");
is($t->query("SELECT redlock_try('kept')"), 'f', 'hold_at_least keeps a released lock');
$result = $t->run("SELECT redlock_acquire('kept', wait => '50 ms')");
is($result->{state}, '55P03', 'a call that waits for too short fails');
is($t->query("SELECT redlock_acquire('kept', scope => 'session') > 0"), 't', 'a call that waits gets it');
cmp_ok(time - $began, '>=', 2, 'not before its time');
$t->query("SELECT redlock_release('kept')");

# ---- keep_idle ----

my $taken = stat_of('taken_idle');
my $granted;
$s->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '1 min')");
$granted = stat_of('granted');
$s->query("SELECT redlock_release('idle')");
$t->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '1 min')");
is(stat_of('taken_idle') - $taken, 1, 'the next session takes an idle lease');
is(stat_of('granted'), $granted, 'without asking the node');
$t->query("SELECT redlock_release('idle')");
is($u->query("SELECT redlock_try('idle', mode => 'shared')"), 't', 'a session with other terms gets it, too');

# ---- detached ----

$s->query("SELECT redlock_acquire('own', scope => 'detached', hold_at_most => '1 min') AS token \\gset");
is($t->query("SELECT redlock_try('own')"), 'f', 'a detached lock is held');
is($t->query("SELECT redlock_release('own', (SELECT token FROM redlock_locks WHERE resource = 'own'))"),
	't', 'its token releases it');
is($t->query("SELECT redlock_try('own')"), 't', 'and it is free');

# ---- the broker is replaced ----

# No lease has the key of hold_at_least, so only the node remembers the key.
$s->query("SELECT redlock_acquire('held', scope => 'session') AS held \\gset");
$s->query("SELECT redlock_acquire('reader', scope => 'session', mode => 'shared')");
$_->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)") foreach $s, $v;
$s->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '5 min')");
$s->query("BEGIN; SELECT redlock_acquire('kept', hold_at_least => '5 min'); COMMIT");
$u->query('BEGIN');
$u->send("SELECT redlock_acquire('held') > 0");
wait_for_waiter('held');
my @held = ("'held'", "'reader'", "'pool', permits => 2", "'detached'", "'kept'");

sub is_held { return $t->query("SELECT redlock_try($_[0])") eq 'f'; }

foreach my $round (1 .. 3)
{
	my $renewed = stat_of('renewed');

	replace_broker($host);
	ok(is_held($_), "$_ is held under the next broker ($round)") foreach @held;
	is($t->query("SELECT redlock_try('new $round')"), 't', 'a new lock is granted at once, without a quarantine');
	ok($host->poll_query_until('postgres', "SELECT renewed >= $renewed + 4 FROM redlock_stats"),
		'the leases are renewed');
	ok(is_held($_), "$_ is still held ($round)") foreach @held;
}
is(stat_of('lost'), $lost, 'no lease was lost');
is( $s->query('SELECT node, state, quarantine FROM redlock_nodes'),
	'local|ready|', 'the node was in no quarantine');
is(count_in_log($host, 'redlock.nodes is local: no lock reaches'), 1, 'the log says no more than before');
is($s->query("SELECT redlock_token('held') = redlock_fence('held')"), 't', 'the holder has its token');
ok(!$u->done, 'a session still waits');
$s->query("SELECT redlock_release('held')");
is($u->result->{out}, 't', 'and gets the lock of the former brokers');
$u->query('COMMIT');

# Sessions release locks while the broker is stopped and about to end: the releases still reach the
# node.
my $pid = broker_pid($host);
kill 'STOP', $pid;
kill 'TERM', $pid;
$s->query("SELECT redlock_release('reader'), redlock_release('pool')");
$v->query("SELECT redlock_release('pool')");
kill 'CONT', $pid;
wait_until(sub { $t->run("SELECT redlock_try('reader') AND redlock_try('pool')")->{out} eq 't' },
	'what is released without a broker is free under the next');

# ---- a request waits while the broker is replaced ----

# Only this request can wake the next broker: the server has no lease and no other request.
{
	my $quiet = redlock_cluster('c', nodes => ['local'], conf => "redlock.node_timeout = '60s'");
	my $caller = session($quiet);

	wait_until(sub { $caller->run("SELECT redlock_try('queued')")->{out} eq 't' }, 'a server takes locks');
	$pid = broker_pid($quiet);
	kill 'STOP', $pid;
	$caller->send("SELECT redlock_acquire('queued', wait => '1 min') > 0");
	wait_until(sub { $quiet->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'queued'") eq 'waiting' },
		'a request is in the queue of the broker');
	replace_broker($quiet);
	# without a wake-up, the next broker would look at its queue after up to 10 s
	wait_until(sub { $caller->done }, 'the next broker takes the request at its start', 5);
	is($caller->result->{out}, 't', 'and grants the lock');
	$caller->quit;
	$quiet->stop;
}

# ---- work goes on while brokers are replaced ----

# At each grant the advisory lock is free, and the token exceeds all earlier tokens.
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/exclusive", <<'SQL');
SELECT redlock_acquire('work', scope => 'session') AS token \gset
SELECT 1 / pg_try_advisory_lock(1)::int;
SELECT 1 / (SELECT count(*) = 0 FROM tokens WHERE token >= :token)::int;
INSERT INTO tokens VALUES (:token);
SELECT pg_advisory_unlock(1);
SELECT redlock_release('work');
SQL
append_to_file("$dir/shared", <<'SQL');
\set writes random(0, 1)
\if :writes
SELECT redlock_acquire('data', scope => 'session');
SELECT 1 / pg_try_advisory_lock(2)::int;
SELECT pg_advisory_unlock(2);
\else
SELECT redlock_acquire('data', scope => 'session', mode => 'shared');
SELECT 1 / pg_try_advisory_lock_shared(2)::int;
SELECT pg_advisory_unlock_shared(2);
\endif
SELECT redlock_release('data');
SQL
$host->safe_psql('postgres', 'CREATE TABLE tokens (token bigint PRIMARY KEY)');
my $errors = '';
my $work = IPC::Run::start(
	[
		$host->installed_command('pgbench'), '-n', '-c', 8, '-T', 10, '-f', "$dir/exclusive",
		'-f', "$dir/shared", '-h', $host->host, '-p', $host->port, 'postgres'
	],
	'>', '/dev/null', '2>', \$errors);
foreach my $round (1 .. 3)
{
	my $count = $host->safe_psql('postgres', 'SELECT count(*) FROM tokens');

	replace_broker($host);
	ok($host->poll_query_until('postgres', "SELECT count(*) > $count + 10 FROM tokens"), "work goes on ($round)");
}
$work->finish;
# the pattern leaves out a failure of a session that found no broker at each look
unlike($errors, qr/division by zero|duplicate key|lost|quorum/, 'no lock was granted twice, no token was out of order, no lease was lost')
  or diag($errors);

# ---- the memory is lost ----

# The test removes the memory, as an operating system may.  The holder's renewals bring the holder's
# key back; no other session gets a lock before all forgotten leases have ended.
$s->query("SELECT redlock_acquire('before', scope => 'session')");
my @segments = grep { -s $_ > 2_000_000 } glob $host->data_dir . '/pg_dynshmem/mmap.*';
is(unlink(@segments), 1, 'its segment is removed; others are smaller');
replace_broker($host);
ok( $host->poll_query_until('postgres',
		"SELECT state = 'quarantined' AND quarantine ~ 'data was lost' FROM redlock_nodes"),
	'a node without its memory is in quarantine');
is($t->run("SELECT redlock_try('after')")->{state}, '08006', 'it grants no lock');
ok($host->poll_query_until('postgres', "SELECT state = 'ready' FROM redlock_nodes"), 'the quarantine ends');
wait_until(sub { $t->run("SELECT redlock_try('after')")->{out} eq 't' }, 'then it grants locks');
is($t->query("SELECT redlock_try('before')"), 'f', 'but not the one that is held');
ok($s->query("SELECT redlock_check('before') > '0'") eq 't' && stat_of('lost') == $lost, 'which was not lost');
$s->query("SELECT redlock_release('before')");

# ---- two servers ----

is($other->safe_psql('postgres', "SELECT redlock_try('detached') AND redlock_try('kept')"),
	't', 'another server with a local node is not kept out');
is($other->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts'), '1', 'and is not seen');

# ---- tokens over restarts ----

$token = $t->query("SELECT redlock_acquire('tokens', scope => 'session')");
$_->quit foreach $s, $t, $u, $v;
$host->restart;
wait_nodes_ready($host, 1);
$s = session($host);
my $next = $s->query("SELECT redlock_acquire('tokens', scope => 'session')");
cmp_ok($next, '>', $token, 'tokens are in order over a restart of the server');
is($s->query("SELECT redlock_try('kept') AND redlock_try('detached')"), 't', 'which ends all leases');
is(count_in_log($host, 'redlock.nodes is local: no lock reaches'), 2, 'the log says once for each start what local is');

# After the kill of a broker the server loses its shared memory.
kill 'KILL', broker_pid($host);
wait_until(sub { (eval { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") } || '') eq '1' },
	'the server is back');
$s->vanish;
$s = session($host);
wait_until(sub { ($token = $s->run("SELECT redlock_acquire('tokens', scope => 'session')")->{out}) ne '' }, 'its locks are free');
cmp_ok($token, '>', $next, 'tokens are in order over a crash');
$s->quit;

# ---- bounded memory ----

# redlock.max_locks is 16: the node knows 288 names.
$s = session($other);
my $first = $s->query("SELECT redlock_acquire('first', scope => 'session')");
$s->query("SELECT redlock_release('first')");
$s->query("DO \$\$ BEGIN FOR i IN 1 .. 1000 LOOP PERFORM redlock_acquire('name ' || i, scope => 'session'); PERFORM redlock_release('name ' || i); END LOOP; END \$\$");
cmp_ok($s->query("SELECT redlock_acquire('first', scope => 'session')"), '>', $first, 'a name that was forgotten gets a later token');
$result = $s->run("DO \$\$ BEGIN FOR i IN 1 .. 1000 LOOP PERFORM redlock_try('kept ' || i, hold_at_least => '10 min', scope => 'session'); PERFORM redlock_release('kept ' || i); END LOOP; END \$\$");
is($result->{state}, '08006', 'when hold_at_least keeps as many names as the node can know, a new name gets an error');
like($result->{detail}, qr/local: OOM in the node: it knows as many names as it can/, 'which says why');
like($result->{hint}, qr/Raise redlock\.max_locks/, 'and what to do');
is($s->query("SELECT redlock_release('first')"), 't', 'a held lock is released all the same');
$s->quit;

# ---- wrong settings ----

sub reload_with
{
	my ($setting, $value, $pattern, $what) = @_;
	my $before = count_in_log($host, $pattern);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$host->append_conf('postgresql.conf', "$setting = '$value'");
	$host->reload;
	wait_until(sub { count_in_log($host, $pattern) > $before }, $what);
}

$s = session($host);
reload_with('redlock.nodes', 'local, redis://:geheim@h:1', 'invalid value for parameter "redlock.nodes": "local" goes with no other node',
	'local beside another node is logged');
is($s->query("SELECT redlock_try('a')"), 't', 'and the former setting stays');
reload_with('redlock.nodes', 'local', 'parameter "redlock.nodes_next"|reloading configuration files', 'local alone');
reload_with('redlock.nodes_next', 'local', 'invalid value for parameter "redlock.nodes_next": "local" goes with no other node',
	'local as the next list is logged');
reload_with('redlock.nodes_next', 'redis://127.0.0.1:1', 'redlock.nodes and redlock.nodes_next are not in force',
	'a next list beside local is logged');
like(log_of($host), qr/redlock.nodes is local, and goes with no other node/, 'and why it is not in force');
is($s->query("SELECT redlock_try('a')"), 't', 'local stays in force');
reload_with('redlock.nodes_next', '', 'reloading configuration files', 'without it');
reload_with('redlock.nodes', '', 'reloading configuration files', 'an empty list');
$host->poll_query_until('postgres', 'SELECT count(*) = 0 FROM redlock_nodes');
$result = $s->run("SELECT redlock_acquire('a')");
is($result->{state}, '55000', 'an empty list is an error, and not local');
unlike(log_of($host), qr/geheim/, 'no password is logged');
reload_with('redlock.nodes', 'local', 'redlock node local is ready', 'local is asked for again');
wait_until(sub { $s->run("SELECT redlock_try('a')")->{out} eq 't' }, 'and grants locks');
$s->quit;

# ---- a host has left local, and still holds a lock there ----

{
	my @nodes = redis_nodes(1);
	my $left = redlock_cluster('d', nodes => ['local']);
	my $right = redlock_cluster('e', nodes => \@nodes);
	my ($holder, $caller) = map { session($_) } $left, $right;
	my $last;

	$holder->query("SELECT redlock_acquire('held', scope => 'session')");
	is($caller->query("SELECT redlock_try('other')"), 't', 'another host takes locks');
	$left->append_conf('postgresql.conf', "redlock.nodes = '" . $nodes[0]->url . "'");
	$left->reload;
	wait_until(sub { $last = $caller->run("SELECT redlock_try('other')"); $last->{state} eq '55000' }, 'until the holder comes to its node');
	like($last->{hint}, qr/^Wait until that host has released these locks\. This host/, 'the hint has a step that is possible');
	is($caller->query("SELECT string_agg(remedy, ' ') FROM redlock_diagnose() WHERE remedy ~ 'these locks'"),
		'Wait until that host has released these locks.', 'so has redlock_diagnose');
	$holder->query("SELECT redlock_release('held')");
	wait_until(sub { $caller->run("SELECT redlock_try('other')")->{out} eq 't' }, 'and the step helps');
	$_->quit foreach $holder, $caller;
	$_->stop foreach $left, $right;
}

# ---- no memory ----

# A directory without rights refuses a segment, as a full disk in memory does.
{
	my $full = redlock_cluster('f');
	my $dir = $full->data_dir . '/pg_dynshmem';
	my $caller = session($full);

	chmod 0500, $dir;
	$full->append_conf('postgresql.conf', "redlock.nodes = 'local'");
	$full->reload;
	ok($full->poll_query_until('postgres', "SELECT connection_errors > 3 FROM redlock_stat_nodes"), 'the node gets no memory');
	is(count_in_log($full, 'redlock node local: the server has no shared memory for it'), 1, 'the log says so once');
	is(count_in_log($full, 'could not open shared memory segment'), 0, 'and no more');
	$result = $caller->run("SELECT redlock_try('a')");
	is($result->{state}, '08006', 'there is no lock');
	like($result->{detail}, qr/local: the server has no shared memory for it: Permission denied/, 'the error has the reason');
	like($result->{hint}, qr/^Free shared memory of this server/, 'and the step');
	is($caller->query("SELECT remedy FROM redlock_diagnose() WHERE finding ~ 'no shared memory for it'"),
		'Free shared memory of this server, as in /dev/shm; the broker tries again.', 'so has redlock_diagnose');
	chmod 0700, $dir;
	wait_until(sub { $caller->run("SELECT redlock_try('a')")->{out} eq 't' }, 'with memory the node grants locks');
	$caller->quit;
	$full->stop;
}

done_testing();

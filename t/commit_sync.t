# A lease ends while a commit waits for a synchronous standby.
#
# Protects from: the alarm of the loss ending the wait, so that the client hears of a commit, and no
# standby has the transaction; an error after the commit, by the alarm, or at the end of a CALL or
# DO that has committed; another session getting a detached lock before the commit is visible.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
# an interrupt also strikes where PostgreSQL logs the duration of a statement that has committed
my $conf = "redlock.ttl = '2s'\nwal_level = replica\nmax_wal_senders = 1\nlog_min_duration_statement = 0";
my ($host, $other) = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);
my $b = session($other);

$host->safe_psql('postgres', 'CREATE TABLE t (i int)');

sub set_standbys
{
	my ($names) = @_;

	$host->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$host->reload;
	ok($host->poll_query_until('postgres', 'SHOW synchronous_standby_names', $names), "standbys: '$names'");
	return;
}

sub waits_for_standby
{
	my ($s) = @_;
	my $pid = $s->pid;

	return $host->safe_psql('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid") eq 't';
}

# name, statements before the commit, the commit, and whether another host forces the release
my @cases = (
	[
		'PREPARE',
		"SET synchronous_commit = on; BEGIN; SELECT redlock_acquire('job', scope => 'session', hold_at_most => '1 s');"
		  . 'INSERT INTO t VALUES (1)',
		"PREPARE TRANSACTION 'p'"
	],
	[ 'COMMIT PREPARED', "SELECT redlock_acquire('job', scope => 'session', hold_at_most => '1 s')", "COMMIT PREPARED 'p'" ],
	[
		'ROLLBACK PREPARED',
		"SET synchronous_commit = off; BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'q'; SET synchronous_commit = on;"
		  . "SELECT redlock_acquire('job', scope => 'session', hold_at_most => '1 s')",
		"ROLLBACK PREPARED 'q'"
	],
	[
		'the end of a DO that has committed',
		'SET redlock.on_loss = error',
		"DO \$\$ BEGIN PERFORM redlock_acquire('job', scope => 'call', hold_at_most => '1 s'); INSERT INTO t VALUES (1); COMMIT; END \$\$"
	],
	[
		'session scope',
		"BEGIN; SELECT redlock_acquire('job', scope => 'session', hold_at_most => '1 s'); INSERT INTO t VALUES (1)", 'COMMIT'
	],
	[
		'terminate',
		"SET redlock.on_loss = terminate; BEGIN; SELECT redlock_acquire('job', hold_at_most => '1 s');"
		  . 'INSERT INTO t VALUES (1)',
		'COMMIT'
	],
	[
		'transaction scope, forced release',
		"BEGIN; SELECT redlock_acquire('job'); INSERT INTO t VALUES (1)", 'COMMIT', 1
	],
	[
		'transaction scope, hold_at_most',
		"BEGIN; SELECT redlock_acquire('job', hold_at_most => '1 s'); INSERT INTO t VALUES (1)", 'COMMIT'
	],
);
foreach (@cases)
{
	my ($case, $before, $commit, $forced) = @$_;
	my $s = session($host);

	set_standbys('none');
	is($s->run($before)->{state}, '', "$case: the session holds the lock");
	$s->send($commit);
	wait_until(sub { waits_for_standby($s) }, "$case: the commit waits for a standby");
	ok($b->run("SELECT redlock_force_release('job')")->{state} eq '', "$case: a forced release") if $forced;
	like($b->query("SELECT redlock_acquire('job', wait => '60 s', scope => 'session')"), qr/^\d+$/, "$case: another host gets the lock");
	ok(waits_for_standby($s), "$case: the commit still waits");
	set_standbys('');
	my $result = $s->result;
	is("$result->{state} $result->{err}", ' ', "$case: the commit ends without a warning");
	$s->quit;
	$b->query("SELECT redlock_release('job')");
}
is($host->safe_psql('postgres', 'SELECT count(*) FROM t'), '6', 'all rows are there');

# After the commit the session hears of the loss of its lease at session scope.
{
	my $s = session($host);

	set_standbys('none');
	$s->query("BEGIN; SELECT redlock_acquire('job', scope => 'session', hold_at_most => '1 s'); INSERT INTO t VALUES (1)");
	$s->send("COMMIT\\; SELECT pg_sleep(120)");
	wait_until(sub { waits_for_standby($s) }, 'a commit and a query');
	$b->query("SELECT redlock_acquire('job', wait => '60 s', scope => 'session')");
	set_standbys('');
	my $result = $s->result;
	is($result->{state}, '57014', 'the query after the commit is cancelled');
	like($result->{message}, qr/lease/, '... because of the loss');
	unlike($result->{err}, qr/synchronous/, '... and the commit was replicated');
	$s->quit;
}

# ---- a detached lock, released by its token ----

{
	my ($s, $t) = map { session($host) } 1 .. 2;
	my $token = $s->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
	my $release = "SELECT redlock_release('detached', $token)";

	$t->query("BEGIN; SELECT redlock_attach('detached', $token); INSERT INTO t VALUES (1)");
	set_standbys('none');
	$t->send('COMMIT');
	wait_until(sub { waits_for_standby($t) }, 'the commit of an attached transaction waits for a standby');
	my $result = $s->run($release);
	is("$result->{state} $result->{message}",
		'55006 redlock "detached" can\'t be released while a transaction attached to it commits', 'no session releases the lock');
	is($b->query("SELECT redlock_try('detached')"), 'f', 'nobody gets the lock');
	set_standbys('');
	is($t->result->{state}, '', 'the transaction has committed');
	is($s->query($release), 't', 'now a session releases the lock');
	$token = $s->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
	$t->query("BEGIN; SELECT redlock_attach('detached', $token); SAVEPOINT s; INSERT INTO t VALUES (1); ROLLBACK TO s; COMMIT");
	$t->run("BEGIN; SELECT redlock_attach('detached', $token); INSERT INTO t VALUES (1), (NULL); PREPARE TRANSACTION 'no'");
	$t->query('ROLLBACK');
	is($s->query("SELECT redlock_release('detached', $token)"), 't', 'also after transactions that wrote nothing, or failed');
	$_->quit for $s, $t;
}

$b->quit;
{
	my $s = session($host);

	$s->query("BEGIN; SELECT redlock_acquire('job', wait => '60 s', scope => 'session', hold_at_most => '1 s'); SAVEPOINT s");
	is($s->run("ROLLBACK PREPARED 'none'")->{state}, '25001', 'ROLLBACK PREPARED fails in a transaction block');
	$s->query('ROLLBACK TO s');
	is($s->run('SELECT pg_sleep(120)')->{state}, '57014', '... and a loss cancels the work that follows');
	$s->quit;
}

# In the extended protocol a transaction without BEGIN commits at the message Sync.
$host->safe_psql('postgres', <<'SQL');
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(120); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit();
SQL
my $script = PostgreSQL::Test::Utils::tempdir() . '/script';
PostgreSQL::Test::Utils::append_to_file($script,
	"SELECT redlock_acquire('job', wait => '60 s', scope => 'session', hold_at_most => '1 s');\nINSERT INTO t VALUES (1);\n");
$host->command_checks_all([ qw(pgbench -n -t 1 -M extended -f), $script, 'postgres' ], 2, [qr/0\/1/],
	[qr/canceling statement because the lease on redlock "job" was lost/], 'a loss cancels a deferred trigger at Sync');

done_testing();

# A lost lease, or an overtaken fence, stops every effect of a commit.
#
# Protects from: NOTIFY, writes to foreign tables, programs, and functions and triggers of other
# extensions taking effect after the session lost its lock, or after a newer holder passed the
# fence; a database or a replication slot gone although the commit failed; a remote transaction
# committing before the guard looks; another host getting the lock before another extension has
# committed elsewhere; a session unable to read, or to release its lost lock; a release of a run's
# own lock inside of the run; a COPY failing under a lock, or slowing each later commit.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes  = redis_nodes(3);
my $host   = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'\nredlock.on_loss = 'error'");
my $remote = PostgreSQL::Test::Cluster->new('remote');

$remote->init(allows_streaming => 'logical');
$remote->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$remote->start;
$remote->safe_psql('postgres', 'CREATE TABLE work (what text)');

my $there = sprintf "host '%s', port '%s', dbname 'postgres'", $remote->host, $remote->port;
my $dsn = sprintf "host=%s port=%s dbname=postgres", $remote->host, $remote->port;
my $rows = PostgreSQL::Test::Utils::tempdir() . '/rows';
my $place = PostgreSQL::Test::Utils::tempdir();
append_to_file($rows, "a row\n");
$host->safe_psql('postgres', <<"SQL");
CREATE EXTENSION postgres_fdw;
CREATE EXTENSION dblink;
CREATE EXTENSION tcn;
CREATE TABLE watched (id int PRIMARY KEY);
CREATE TRIGGER watched AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION triggered_change_notification();
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw OPTIONS ($there);
CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
CREATE FOREIGN TABLE far (what text) SERVER remote OPTIONS (table_name 'work');
CREATE TABLE parts (what text) PARTITION BY LIST (what);
CREATE FOREIGN TABLE part PARTITION OF parts DEFAULT SERVER remote OPTIONS (table_name 'work');
CREATE TABLE near (what text);
CREATE SEQUENCE numbers;
SQL

my $hears = session($host);
$hears->query('LISTEN told');

my %effects = (
	'NOTIFY' => 'NOTIFY told',
	'pg_notify' => "SELECT pg_notify('told', '')",
	'pg_notify in an expression of PL/pgSQL' => "DO \$\$ DECLARE x text; BEGIN x := pg_notify('told', ''); END \$\$",
	'a foreign table' => "INSERT INTO far VALUES ('insert')",
	'a foreign partition' => "INSERT INTO parts VALUES ('partition')",
	'a data-modifying WITH' => "WITH w AS (INSERT INTO far VALUES ('with') RETURNING 1) SELECT * FROM w",
	'COPY FROM' => "COPY far FROM '$rows'",
	'COPY FROM to a partition' => "COPY parts FROM '$rows'",
	'TRUNCATE' => 'TRUNCATE far',
	'dblink_exec' => "SELECT dblink_exec('$dsn', 'INSERT INTO work VALUES (''dblink'')')",
	'dblink_exec in an expression of PL/pgSQL' =>
	  "DO \$\$ DECLARE x text; BEGIN x := dblink_exec('$dsn', 'INSERT INTO work VALUES (''dblink'')'); END \$\$",
	'COPY TO a file' => "COPY (SELECT 1) TO '$rows.out'",
	'COPY FROM a program' => "COPY near FROM PROGRAM 'tee $rows.out <$rows'",
	'a trigger of another extension' => 'INSERT INTO watched VALUES (1)',
	'setval' => "SELECT setval('numbers', 7)",
	'setval with a flag' => "SELECT setval('numbers', 7, false)",
	# without a slot of this name
	'the changes of a slot' => "SELECT * FROM pg_logical_slot_get_changes('s', NULL, NULL)",
	'a slot that advances' => "SELECT pg_replication_slot_advance('s', '0/1')",
	'a copied slot' => "SELECT pg_copy_physical_replication_slot('s', 't')",
	'a copied logical slot' => "SELECT pg_copy_logical_replication_slot('s', 't', true)",
	'an origin that advances' => "SELECT pg_replication_origin_advance('s', '0/1')",
	'a dropped slot' => "SELECT pg_drop_replication_slot('s')",
	'a message outside of transactions' => "SELECT pg_logical_emit_message(false, 'x', 'y')",
	'a table' => "INSERT INTO near VALUES ('row')",
	# a plan without a row counts, too: another extension may execute the plan elsewhere
	'a write of no row' => "DELETE FROM near",
	'a COPY of no row' => "COPY near FROM '/dev/null'",
);

sub traces
{
	return $remote->safe_psql('postgres', "SELECT coalesce(string_agg(what, ' '), '') FROM work WHERE what <> 'before'") . ' '
	  . $host->safe_psql('postgres', 'SELECT count(*) FROM near') . ' ' . (-e "$rows.out" ? 'file' : 'no file');
}

sub lose
{
	my ($session, $name) = @_;

	$session->query("SELECT redlock_acquire('$name', scope => 'session', hold_at_most => '300 ms')");
	wait_until(sub { $host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = '$name'") eq 'lost' },
		'a session-scope lease is lost');
	return;
}

# ---- a lost lease ----

$remote->safe_psql('postgres', "INSERT INTO work VALUES ('before')");
my $session = session($host);
lose($session, 'lost');
foreach my $effect (sort keys %effects)
{
	my $result = $session->run($effects{$effect});
	is($result->{state}, '40001', "after a loss: $effect");
	like($result->{message}, qr/^the lease on redlock "lost" was lost/, '... which is told');
	is(traces(), ' 0 no file', '... and leaves no trace');
}
is($remote->safe_psql('postgres', "SELECT count(*) FROM work WHERE what = 'before'"), '1', 'TRUNCATE neither');
$session->query(qq(SELECT count(*) FROM $_)) foreach qw(near far pg_class redlock_locks redlock_nodes);
is($session->run('BEGIN; SELECT random(), now(), nextval(\'s\') FROM (SELECT 1) x; COMMIT')->{state}, '42P01', 'an error is its own');
$session->query('ROLLBACK');
is($session->run('SELECT redlock_check(\'lost\')')->{state}, '40001', 'the session can look');
is($session->run("SELECT redlock_release('lost')")->{out}, 'f', 'and release');
is($session->run($effects{$_})->{state}, '', "afterwards: $_") foreach 'NOTIFY', 'a foreign table', 'COPY FROM', 'dblink_exec';
isnt(traces(), ' 0 no file', 'has its effect');
$remote->safe_psql('postgres', 'DELETE FROM work');
$session->quit;

# A session calls a function without an effect; another session replaces this function.
my $caller = session($host);
$host->safe_psql('postgres', "CREATE FUNCTION changes() RETURNS text[] VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'");
lose($caller, 'changed');
is($caller->run('SELECT changes()')->{state}, '', "after a loss: a function without effect, call $_") foreach 1, 2;
$host->safe_psql('postgres', "CREATE OR REPLACE FUNCTION changes() RETURNS text[] VOLATILE LANGUAGE C AS '\$libdir/dblink', 'dblink_get_connections'");
is($caller->run('SELECT changes()')->{state}, '40001', 'then the function has an effect');
$caller->query("SELECT redlock_release('changed')");
is($caller->run('SELECT changes()')->{state}, '', 'which is allowed after the release');
$caller->quit;

# If a rollback undoes an effect, the commit fails; otherwise the statement fails.
lose($session, 'where');
foreach my $what ('NOTIFY', 'pg_notify', 'pg_notify in an expression of PL/pgSQL', 'a table', 'a write of no row', 'a COPY of no row')
{
	$session->query('BEGIN');
	is($session->run($effects{$what})->{state}, '', "$what: no error at the statement");
	is($session->run('ROLLBACK')->{state}, '', '... nor at the rollback');
	$session->query('BEGIN');
	$session->run($effects{$what});
	is($session->run('COMMIT')->{state}, '40001', '... and the commit fails');
}
foreach my $what (
	'a foreign table', 'COPY FROM', 'dblink_exec', 'COPY TO a file', 'COPY FROM a program',
	'a trigger of another extension', 'setval', 'setval with a flag', 'the changes of a slot')
{
	$session->query('BEGIN');
	is($session->run($effects{$what})->{state}, '40001', "$what: an error at the statement");
	is($session->run('ROLLBACK')->{state}, '', '... and the transaction rolls back');
}
is($host->safe_psql('postgres', 'SELECT last_value FROM numbers'), '1', 'the sequence is as before');
is($session->run("SELECT redlock_release('where')")->{out}, 'f', 'the session can release the lock after each');

# Statements that PostgreSQL forbids in a transaction block: a rollback would not undo the files, or
# the remote slot.
sub outside
{
	return join ' ', scalar(() = glob $host->data_dir . '/base/*'), scalar(() = glob "$place/*/*"),
	  $host->safe_psql('postgres', "SELECT string_agg(format('%s %s', datname, datconnlimit), ' ' ORDER BY datname) FROM pg_database"),
	  $host->safe_psql('postgres', 'SELECT count(*) FROM pg_subscription'),
	  $remote->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots');
}

mkdir "$place/$_" foreach 'old', 'new';
$remote->safe_psql('postgres', 'CREATE PUBLICATION work FOR TABLE work');
$host->safe_psql('postgres', $_) foreach
  'CREATE DATABASE old', "CREATE TABLESPACE old LOCATION '$place/old'", 'CREATE TABLE work (what text)',
  "CREATE SUBSCRIPTION old CONNECTION '$dsn' PUBLICATION work WITH (enabled = false)";
lose($session, 'outside');
my $outside = outside();
foreach my $statement (
	'CREATE DATABASE new', 'ALTER DATABASE old SET TABLESPACE old', 'DROP DATABASE old',
	"CREATE TABLESPACE new LOCATION '$place/new'", 'DROP TABLESPACE old',
	"CREATE SUBSCRIPTION new CONNECTION '$dsn' PUBLICATION work WITH (enabled = false)", 'DROP SUBSCRIPTION old')
{
	my $result = $session->run($statement);
	is("$result->{state} $result->{message}", '40001 the lease on redlock "outside" was lost', $statement);
	is(outside(), $outside, '... leaves everything as it was');
}
is($session->run("SELECT redlock_release('outside')")->{out}, 'f', 'the session releases the lock');
is($session->run($_)->{state}, '', "afterwards: $_") foreach 'DROP SUBSCRIPTION old', 'DROP DATABASE old', 'DROP TABLESPACE old';

# The lease is lost after the write, and the wrapper registers its callback after redlock_pg.  A
# statement before may name the wrapper without a write.
my %before = (
	'nothing' => 'SELECT 1',
	'a DELETE whose remote part is pruned' =>
	  'SET plan_cache_mode = force_generic_plan; PREPARE d(int) AS DELETE FROM pruned WHERE k = $1; EXECUTE d(1)',
	'a COPY of no row' => "COPY parts FROM '/dev/null'",
	'several COPYs' => join('; ', ("COPY parts FROM '/dev/null'") x 3),
	'COPYs in a function' => join(' ', 'DO $$ BEGIN', ("COPY parts FROM '/dev/null';") x 3, 'END $$'),
	'TRUNCATE ONLY' => 'TRUNCATE ONLY above',
	'a COPY to the table above' => "COPY above FROM '/dev/null'");
$host->safe_psql('postgres', <<'SQL');
CREATE TABLE pruned (k int, what text) PARTITION BY LIST (k);
CREATE TABLE pruned1 PARTITION OF pruned FOR VALUES IN (1);
CREATE FOREIGN TABLE pruned2 PARTITION OF pruned FOR VALUES IN (2) SERVER remote OPTIONS (table_name 'work');
CREATE TABLE above (what text);
CREATE FOREIGN TABLE below () INHERITS (above) SERVER remote OPTIONS (table_name 'work');
SQL
foreach my $case ((map { [ $_, '' ] } sort keys %before), [ 'nothing', "INSERT INTO near VALUES ('row');" ])
{
	my ($before, $more) = @$case;
	my $v = session($host);

	$v->query("SELECT redlock_acquire('first', scope => 'session')");
	$v->query($before{$before});
	$v->query("BEGIN; SELECT redlock_acquire('late', scope => 'session', hold_at_most => '1 s'); INSERT INTO far VALUES ('late'); $more");
	wait_until(sub { $host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'late'") eq 'lost' }, 'lost after the write');
	my $result = $v->run('COMMIT');
	is("$result->{state} $result->{message}", '40001 the lease on redlock "late" was lost before the commit',
		"after $before: the commit fails");
	is(traces(), ' 0 no file', 'before the remote commit');
	$v->quit;
}

{
	my $v = session($host);
	my $used = "SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'";

	$v->query("SELECT redlock_try('any', scope => 'session'), redlock_release('any')");
	$v->query("COPY parts FROM '/dev/null'") for 1 .. 10;
	my $before = $v->query($used);
	$v->query("COPY parts FROM '/dev/null'") for 1 .. 1000;
	$v->query(join ' ', 'DO $$ BEGIN', ("COPY parts FROM '/dev/null';") x 1000, 'END $$');
	$v->query('BEGIN; COMMIT');
	cmp_ok($v->query($used) - $before, '<', 1000 * 16, 'a COPY leaves no callback behind');
	$v->quit;
}

# ---- a procedure in another language ----

{
	my $library = guest_library('run_statements') // die 'no statements';

	$host->safe_psql('postgres', "CREATE PROCEDURE run_statements(text, text, text, text, text) LANGUAGE C AS '$library'");
	foreach my $scope ('session', 'call')
	{
		my $v = session($host);
		my $result = $v->run("CALL run_statements('SELECT redlock_acquire(''mine'', scope => ''$scope'', hold_at_most => ''300 ms'')', "
			  . "'COMMIT', 'SELECT pg_sleep(1)', 'file $place/effect', 'COMMIT')");

		is("$result->{state} $result->{message}", '40001 the lease on redlock "mine" was lost before the commit',
			"the first lock of a session, at $scope scope, in a procedure in another language");
		ok(-e "$place/effect", '... which has had an effect');
		unlink "$place/effect";
		$v->quit;
	}
}

# ---- an overtaken fence ----

my $gate = session($host);
foreach my $effect ('NOTIFY', 'a foreign table', 'a foreign partition', 'COPY FROM', 'TRUNCATE', 'a table')
{
	my $v = session($host);
	my $statement = $effects{$effect} =~ s/'/''/gr;

	$gate->query('SELECT pg_advisory_lock(1)');
	$v->send("CALL redlock_run('job', 'DO \$x\$ BEGIN COMMIT; PERFORM pg_advisory_lock_shared(1); $statement; COMMIT; END \$x\$', fence => true)");
	wait_until(sub { $host->safe_psql('postgres', 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $v->pid) eq 'advisory' }, 'a run waits');
	$host->safe_psql('postgres', 'UPDATE redlock_fences SET token = token + 1');
	$gate->query('SELECT pg_advisory_unlock(1)');
	my $result = $v->result;
	is("$result->{state} $result->{message}", '40001 a newer holder of redlock "job" has passed the fence', "an overtaken run: $effect");
	is(traces(), ' 0 no file', '... leaves no trace');
	$v->quit;
	$host->safe_psql('postgres', 'UPDATE redlock_fences SET token = 0');
}

# ---- a release does not hide the loss from the commit ----

foreach my $release ("redlock_release('gone')", 'redlock_release_all()', "redlock_release('gone'), redlock_acquire('gone', scope => 'session')")
{
	foreach my $work ("INSERT INTO near VALUES ('work')", 'SELECT 1')
	{
		my $s = session($host);

		# the first transaction of a session with an acquire counts as a transaction with effects
		$s->query("SELECT redlock_try('any', scope => 'session'), redlock_release('any')");
		$s->query("BEGIN; SELECT redlock_acquire('gone', scope => 'session', hold_at_most => '100 ms')");
		$s->query($work);
		wait_until(sub { $host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'gone'") eq 'lost' }, 'a lease is lost');
		$s->run("SELECT $release");
		if ($work =~ /INSERT/)
		{
			$s->query('SAVEPOINT before');
			is($s->run($effects{'COPY TO a file'})->{state}, '40001', "$work; $release; an effect at once");
			is(traces(), ' 0 no file', '... leaves no trace');
			$s->query('ROLLBACK TO before');
		}
		is($s->run('COMMIT')->{state}, $work =~ /INSERT/ ? '40001' : '', "$work; $release; COMMIT");
		is($host->safe_psql('postgres', 'SELECT count(*) FROM near'), '0', '... leaves nothing');
		is($s->run("INSERT INTO near VALUES ('later'); DELETE FROM near")->{state}, '', 'the next transaction commits');
		$s->quit;
	}
}

# ---- an extension that commits elsewhere after the commit ----

{
	my $library = guest_library('slow_commit') // die 'no slow commit';
	my $until = "$place/until";
	my $b = session(redlock_cluster('b', nodes => \@nodes, conf => "redlock.ttl = '60s'"));

	foreach my $work (
		"BEGIN\\; SELECT redlock_acquire('shards')\\; INSERT INTO near VALUES ('shard')\\; COMMIT",
		"CALL redlock_run('shards', 'INSERT INTO near VALUES (''shard'')')")
	{
		my $s = session($host);

		append_to_file($until, '');
		$s->query("LOAD '$library'; SET slow_commit.until = '$until'");
		unlink $until;
		$s->send($work);
		wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM near') eq '1' }, "$work: the commit is visible");
		is($host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'shards'"), 'held',
			'the other extension still commits, and the session has the lock');
		is($b->query("SELECT redlock_try('shards')"), 'f', 'another host does not get the lock');
		append_to_file($until, '');
		is($s->result->{state}, '', 'the work ends');
		is($b->query("SELECT redlock_acquire('shards', wait => '60 s') > 0"), 't', 'then another host gets the lock');
		$s->quit;
		$host->safe_psql('postgres', 'DELETE FROM near');
	}
	$b->quit;
}

# ---- a partition whose wrapper can't be loaded ----

$host->safe_psql('postgres', <<'SQL');
CREATE FOREIGN DATA WRAPPER without_handler;
CREATE SERVER without_handler FOREIGN DATA WRAPPER without_handler;
CREATE TABLE mixed (what text) PARTITION BY LIST (what);
CREATE TABLE mixed_near PARTITION OF mixed DEFAULT;
CREATE FOREIGN TABLE mixed_far PARTITION OF mixed FOR VALUES IN ('far') SERVER without_handler;
SQL
$session = session($host);
$session->query("SELECT redlock_acquire('any', scope => 'session')");
is($session->run("COPY mixed FROM '$rows'")->{state}, '', 'COPY to the other partitions works, as without a lock');
$session->quit;

# ---- COPY to other partitions comes before the callback of a wrapper ----

$host->safe_psql('postgres', <<'SQL');
CREATE TABLE two (what text) PARTITION BY LIST (what);
CREATE TABLE two_near PARTITION OF two FOR VALUES IN ('a row');
CREATE FOREIGN TABLE two_far PARTITION OF two DEFAULT SERVER remote OPTIONS (table_name 'work');
SQL
$session = session($host);
$session->query("SELECT redlock_try('any', scope => 'session'), redlock_release('any')");
is($session->run("COPY two FROM '$rows'")->{state}, '', 'COPY to a partition of this server');
$session->query("BEGIN; SELECT redlock_acquire('late', hold_at_most => '1 s'); INSERT INTO far VALUES ('late')");
wait_until(sub { $host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'late'") eq 'lost' }, 'a lease is lost');
is($session->run('COMMIT')->{state}, '40001', 'the commit fails');
is($remote->safe_psql('postgres', "SELECT count(*) FROM work WHERE what = 'late'"), '0', '... before the wrapper commits');
$session->quit;

# ---- the lock of a run ----

$session = session($host);
foreach my $options ('', ', fence => true')
{
	my $result = $session->run("CALL redlock_run('own', 'SELECT redlock_release(''own'')'$options)");
	is("$result->{state} $result->{message}", '55006 redlock "own" can\'t be released while redlock_run relies on it', "a run releases its lock$options");
	is($session->run("CALL redlock_run('own', 'INSERT INTO near SELECT redlock_release_all()'$options)")->{state}, '', 'redlock_release_all leaves it');
	is($host->safe_psql('postgres', 'DELETE FROM near RETURNING what'), '0', '... and does not count it');
	is($session->run("CALL redlock_run('own', 'SELECT redlock_acquire(''own'', scope => ''session''), redlock_release(''own'')'$options)")->{state}, '',
		'another acquisition may be released');
	is($session->run("CALL redlock_run('own', 'CALL redlock_run(''own'', ''SELECT 1''); SELECT redlock_release(''own'')'$options)")->{state}, '',
		'the acquisition of an inner run that has ended may be released');
	is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'own' AND state = 'held'"), '0', 'all end with the run');
}
$session->run("DO \$\$ BEGIN BEGIN CALL redlock_run('own', 'SELECT 1 / 0'); EXCEPTION WHEN division_by_zero THEN NULL; END; PERFORM redlock_release('own'); END \$\$");
is($session->run("SELECT redlock_try('own', scope => 'session') AND redlock_release('own')")->{out}, 't', 'a run that failed relies on nothing');

# A release keeps the fence of a run whose last transaction is not over.
is($session->run("BEGIN; CALL redlock_run('own', 'SELECT 1', fence => true); SELECT redlock_release('own')")->{state}, '55006', 'nor before the commit');
$session->query('ROLLBACK');

my $heard = () = $hears->run('SELECT 1')->{out} =~ /Asynchronous notification/g;
is($heard, 1, 'of all notifications, only the one after the release was sent');
$_->quit foreach $session, $gate, $hears;
done_testing();

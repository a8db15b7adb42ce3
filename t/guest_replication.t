# Logical replication brings rows of redlock_fences: a publication FOR ALL TABLES includes the
# table.
#
# Protects from: a subscription stopping at a row of both sides; a token going back on the
# subscriber, by a late row, an old initial copy or a DELETE; a stale holder passing on the
# subscriber after a newer holder's work came there; a fence failing where session_replication_role
# is replica; a dump losing or doubling the triggers; rows circling for ever between two servers
# that replicate to each other; a subscription stopping at a grant to a role that the subscriber
# lacks.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my %options = (nodes => \@nodes, conf => "redlock.ttl = '60s'");
my $publisher  = redlock_cluster('publisher',  %options, init => { allows_streaming => 'logical' });
my $subscriber = redlock_cluster('subscriber', %options, init => { allows_streaming => 'logical' });

$_->safe_psql('postgres', 'CREATE TABLE data (id int PRIMARY KEY)') for $publisher, $subscriber;

# Takes the locks, passes their fences and releases all; returns the first token.
sub pass
{
	my ($host, @names) = @_;
	my $mode = @names && $names[0] eq 'shared' ? shift @names : 'exclusive';
	my $tokens = $host->safe_psql(
		'postgres', join ";\n",
		'BEGIN',
		(map { "SELECT redlock_acquire('$_', mode => '$mode')" } @names),
		(map { "SELECT redlock_fence('$_')" } @names),
		'COMMIT');

	return (split /\n/, $tokens)[0];
}

sub token
{
	my ($host, $name) = @_;
	return $host->safe_psql('postgres', "SELECT token FROM redlock_fences WHERE resource = '$name'");
}

# Waits until the subscriber has a new row of the publisher; the subscriber then has all earlier
# rows.
my $row = 0;

sub catches_up
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$row++;
	$publisher->safe_psql('postgres', "INSERT INTO data VALUES ($row)");
	ok( $subscriber->poll_query_until('postgres', "SELECT count(*) = 1 FROM data WHERE id = $row"),
		"$what: replication goes on");
	return;
}

# Both servers record a run; then the subscriber has the runs of both servers.
sub record
{
	my ($what, $count) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$_->safe_psql('postgres', "CALL redlock_run('recorded', 'SELECT 1', wait => '1 min', record => true)") for $publisher, $subscriber;
	ok( $subscriber->poll_query_until('postgres',
			"SELECT count(*) = 2 AND bool_and(runs = $count AND succeeded = runs)"
			  . " FROM (SELECT count(*) AS runs, count(*) FILTER (WHERE status = 'succeeded') AS succeeded FROM redlock_runs GROUP BY host) r"),
		"$what: the runs of both") if $count;
	return;
}

# Grants belong to the roles of a server: replication brings none, and takes none away.
sub keeps_grants
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($subscriber->safe_psql('postgres', "SELECT string_agg(role || ' ' || pattern, ', ') FROM redlock_grants"),
		'on_both here/%', "$what: grants stay as they are");
	return;
}

$_->safe_psql('postgres', 'CREATE ROLE on_both') for $publisher, $subscriber;
$publisher->safe_psql('postgres',
	"CREATE ROLE only_there; SELECT redlock_grant('only_there', '%'), redlock_grant('on_both', 'here/%'), redlock_grant('on_both', '%')");
$subscriber->safe_psql('postgres', "SELECT redlock_grant('on_both', 'here/%')");

# ---- the initial copy ----

record('copy', 0);

my $both_older = pass($publisher, 'copy: here newer');
my $here_newer = pass($subscriber, 'copy: here newer', 'copy: there newer');
my $both_newer = pass($publisher, 'copy: there newer', 'copy: only there');

$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION everything CONNECTION '" . $publisher->connstr . " dbname=postgres' PUBLICATION everything");
ok( $subscriber->poll_query_until('postgres',
		"SELECT bool_and(srsubstate = 'r') AND count(*) = 5 FROM pg_subscription_rel"),
	'the initial copy ends');
is(token($subscriber, 'copy: here newer'), $here_newer, 'the newer token of the subscriber stays');
is(token($subscriber, 'copy: there newer'), $both_newer, 'a newer one of the publisher is taken');
is(token($subscriber, 'copy: only there'), token($publisher, 'copy: only there'), 'a new one, too');
catches_up('initial copy');
keeps_grants('initial copy');
record('initial copy', 2);

# ---- rows of both servers ----

my $here = pass($subscriber, 'first');
my $there = pass($publisher, 'first');
catches_up('a resource that both fenced first, the publisher later');
is(token($subscriber, 'first'), $there, 'its token is the larger one');
$there = pass($publisher, 'first');
catches_up('a newer token');
is(token($subscriber, 'first'), $there, 'is taken');
is( $subscriber->safe_psql('postgres', 'SELECT passed_at FROM redlock_fences ORDER BY passed_at DESC LIMIT 1'),
	$publisher->safe_psql('postgres', 'SELECT passed_at FROM redlock_fences ORDER BY passed_at DESC LIMIT 1'),
	'with its time');

# ---- late rows ----

foreach my $name ('late', 'first')
{
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION everything DISABLE');
	ok( $subscriber->poll_query_until('postgres',
			'SELECT bool_and(pid IS NULL) FROM pg_stat_subscription'),
		'replication is stopped');
	pass($publisher, $name);
	$here = pass($subscriber, $name);
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION everything ENABLE');
	catches_up("$name: a late older row");
	is(token($subscriber, $name), $here, 'the token does not go back');
}

$publisher->safe_psql('postgres', "SELECT redlock_grant('only_there', 'more'), redlock_revoke('on_both', 'here/%')");
catches_up('grants of a role that is not here');
keeps_grants('a grant and a revoke');

# ---- manual changes on the publisher ----

$here = token($subscriber, 'first');
$publisher->safe_psql('postgres', "UPDATE redlock_fences SET token = 0 WHERE resource = 'first'");
catches_up('a token that was reset');
is(token($subscriber, 'first'), $here, 'stays on the subscriber');
$publisher->safe_psql('postgres', "DELETE FROM redlock_fences WHERE resource = 'first'");
catches_up('a row that was deleted');
is(token($subscriber, 'first'), $here, 'stays on the subscriber');
$there = pass($publisher, 'first');
catches_up('and made anew');
is(token($subscriber, 'first'), $there, 'is merged');

# ---- stale holders on the subscriber ----

# The subscriber's session keeps the lock; the test writes the row of a newer holder.
my $session = session($subscriber);
$session->query("SELECT redlock_acquire('stale', scope => 'session')");
$session->query("SELECT redlock_fence('stale')");
$publisher->safe_psql('postgres',
	"INSERT INTO redlock_fences SELECT 'stale', 9000000000000000, clock_timestamp()");
catches_up('the fence of a newer holder');
is($session->run("SELECT redlock_fence('stale')")->{state},
	'40001', 'a stale holder on the subscriber is refused');

$publisher->safe_psql('postgres',
	"INSERT INTO redlock_shared_fences (resource, token, passed_at) SELECT 'shared', 9000000000000000, clock_timestamp()");
catches_up('the fence of a newer reader');
$session->query("SELECT redlock_acquire('shared', scope => 'session')");
is($session->run("SELECT redlock_fence('shared')")->{state},
	'40001', 'a stale exclusive holder on the subscriber is refused');

# The subscription waits, as for any row that both sides write, and does not stop.
$session->query("SELECT redlock_acquire('busy', scope => 'session')");
$session->query("BEGIN; SELECT redlock_fence('busy')");
$publisher->safe_psql('postgres',
	"INSERT INTO redlock_fences SELECT 'busy', 9000000000000000, clock_timestamp()");
ok( $subscriber->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid IN (SELECT pid FROM pg_stat_subscription)"),
	'replication waits for a transaction that has passed the same fence');
$session->query('COMMIT');
catches_up('when that is over');
is(token($subscriber, 'busy'), '9000000000000000', 'with the newer token');

# ---- a fence where the trigger fires ----

$session->query("SET session_replication_role = replica; SELECT redlock_acquire('replica', scope => 'session')");
foreach my $what ('a new row', 'its own row')
{
	is($session->run("SELECT redlock_fence('replica') = redlock_token('replica')")->{out},
		't', "session_replication_role = replica: $what");
}
is(token($subscriber, 'replica'), $session->query("SELECT redlock_token('replica')"), 'it is there');
my $other = session($subscriber);
$other->query("BEGIN; SELECT FROM redlock_fences WHERE resource = 'replica' FOR UPDATE");
is($session->run("SET lock_timeout = '100 ms'; SELECT redlock_fence('replica')")->{state}, '55P03', 'a fence fails');
$other->quit;
$session->query("UPDATE redlock_fences SET token = 0 WHERE resource = 'replica'");
is(token($subscriber, 'replica'), $session->query("SELECT redlock_token('replica')"), 'after which rows are merged as before');
$session->quit;

# ---- dumps ----

my $dump = $subscriber->backup_dir . '.sql';
command_ok([ 'pg_dump', '-d', $subscriber->connstr('postgres'), '--no-subscriptions', '-f', $dump ], 'pg_dump');
$subscriber->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $subscriber->connstr('restored'), '-f', $dump ],
	'psql restores the dump');
is( $subscriber->safe_psql('restored',
		"SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'redlock_fences'::regclass"),
	'redlock_fence_merge|R', 'with the trigger');
is($subscriber->safe_psql('restored', 'SELECT count(*) FROM redlock_fences'), '0', 'and no tokens');

# ---- without the initial copy ----

$subscriber->safe_psql('postgres', "DROP SUBSCRIPTION everything; DELETE FROM redlock_fences WHERE resource = 'first'");
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION everything CONNECTION '" . $publisher->connstr . " dbname=postgres' PUBLICATION everything WITH (copy_data = false)");
my $copied = token($publisher, 'first');
$subscriber->safe_psql('postgres', "INSERT INTO redlock_fences VALUES ('first', $copied, now())");
$there = pass($publisher, 'first');
catches_up('a row copied by hand');
is(token($subscriber, 'first'), $there, 'the next token arrives');

# ---- in both directions ----

# Each server forwards the other server's rows: version 15 has no way to forbid this.
$subscriber->safe_psql('postgres', 'CREATE PUBLICATION fences FOR TABLE redlock_fences, redlock_shared_fences, redlock_runs');
$publisher->safe_psql('postgres',
	"CREATE SUBSCRIPTION fences CONNECTION '" . $subscriber->connstr . " dbname=postgres' PUBLICATION fences");

# Waits until a new row has gone around; all earlier rows have then gone around, too.
my $round = 0;

sub go_round
{
	my @way = ($publisher, $subscriber);

	$round++;
	foreach (1 .. 2)
	{
		my ($from, $to) = @way;
		my $sent = pass($from, "round $round");
		ok( $to->poll_query_until('postgres',
				"SELECT token >= $sent FROM redlock_fences WHERE resource = 'round $round'"),
			'a row goes from ' . $from->name . ' to ' . $to->name);
		@way = reverse @way;
	}
	return;
}

sub rows
{
	my ($columns) = @_;
	return map {
		$_->safe_psql('postgres',
			"SELECT resource, $columns FROM redlock_fences WHERE resource !~ '^round' ORDER BY resource")
	} $publisher, $subscriber;
}

$session = session($subscriber);
$session->query("SELECT redlock_acquire('same token', scope => 'session')");
foreach (1 .. 2)
{
	pass($_, 'in turn') foreach $publisher, $subscriber;
	pass($publisher, 'of one');
	pass($subscriber, 'of the other');
	# older rows come back when newer rows are there
	$session->query("DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP PERFORM redlock_fence('same token'); COMMIT; END LOOP; END \$\$");
}
go_round() foreach 1 .. 2;
my ($on_publisher, $on_subscriber) = rows('token, passed_at');
is($on_publisher, $on_subscriber, 'both servers have the same rows');
my @versions = rows('ctid, xmin');
go_round() foreach 1 .. 2;
is_deeply([ rows('ctid, xmin') ], \@versions, 'which have come to rest');

# also rows of readers, which newer rows replace
sub shared_rows
{
	my ($columns) = @_;
	return map { $_->safe_psql('postgres', "SELECT $columns FROM redlock_shared_fences ORDER BY resource, token") } $publisher, $subscriber;
}

foreach (1 .. 2)
{
	foreach my $host ($publisher, $subscriber)
	{
		pass($host, 'shared', 'by readers', 'and a writer');
		pass($host, 'and a writer');
	}
	# older rows come back when newer rows are there
	$session->query(
		"DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP PERFORM redlock_acquire('by readers', scope => 'session', mode => 'shared');"
		  . " PERFORM redlock_fence('by readers'); COMMIT; PERFORM redlock_release('by readers'); END LOOP; END \$\$");
	go_round();
}
go_round();
@versions = shared_rows('resource, token, ctid, xmin');
go_round() foreach 1 .. 2;
is_deeply([ shared_rows('resource, token, ctid, xmin') ], \@versions, 'rows of shared locks have come to rest');
($on_publisher, $on_subscriber) = shared_rows('resource, token');
is($on_publisher, $on_subscriber, 'and are the same');

# runs, too
my @before = map { $_->safe_psql('postgres', 'SELECT count(*) FROM redlock_runs') } $publisher, $subscriber;
record('both ways', 3);
ok( $publisher->poll_query_until('postgres', "SELECT count(*) >= $before[0] + 2 AND bool_and(status = 'succeeded') FROM redlock_runs"),
	'both ways: on the other as well');
sub runs { return map { $_->safe_psql('postgres', 'SELECT id, ctid, xmin FROM redlock_runs ORDER BY id') } $publisher, $subscriber; }
go_round();
@versions = runs();
go_round() foreach 1 .. 2;
is_deeply([ runs() ], \@versions, 'and have come to rest');

# a guessed end, then the true end; both updates also come back
my $end = "SELECT status, message, ended IS NOT NULL FROM redlock_runs WHERE resource = 'guessed'";
$publisher->safe_psql('postgres', <<'SQL');
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, host_id, session, started, status)
SELECT 'guessed', '', host, database, role, pid, server, host_id, session, started, 'running' FROM redlock_runs LIMIT 1;
UPDATE redlock_runs SET status = 'failed', message = 'guess' WHERE resource = 'guessed';
UPDATE redlock_runs SET status = 'failed', message = 'true', ended = now() WHERE resource = 'guessed';
SQL
$subscriber->poll_query_until('postgres', "SELECT EXISTS ($end)");
go_round() foreach 1 .. 2;
is($_->safe_psql('postgres', $end), 'failed|true|t', $_->name . ': the true end replaces the guessed end') foreach $publisher, $subscriber;
$session->quit;

$publisher->safe_psql('postgres', 'DROP SUBSCRIPTION fences');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION everything');
done_testing();

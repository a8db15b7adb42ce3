# Two PostgreSQL hosts and plain Redlock clients exclude each other on five nodes.
#
# Protects from: two holders at a time; a lock outliving its end; a release coming before the
# commit is visible; a key foreign to plain Redlock clients.
#
# The ttl is longer than any wait here, so only a release frees a lock in time.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $session_a = session($host_a);
my $session_b = session($host_b);

# Waits until B gets the lock after A's release; then B releases the lock.
sub becomes_free
{
	my ($name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session_b->query('BEGIN');
	wait_until(
		sub { $session_b->query("SELECT redlock_try('$name')") eq 't' },
		$description, 30);
	$session_b->query('COMMIT');
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 },
		"no key of \"$name\" is left", 30);
}

sub is_taken
{
	my ($name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session_b->query("SELECT redlock_try('$name')"), 'f', $description);
}

# ---- transaction scope ----

$session_a->query('BEGIN');
is($session_a->query("SELECT redlock_try('job')"), 't', 'A takes the lock');
is_taken('job', 'B is refused while the transaction of A is open');
is($session_b->query("SELECT redlock_try('other job')"), 't', 'another lock is free');
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');

my $value = $nodes[0]->cli('GET', 'redlock:job');
like($value, qr/^[0-9a-f]{32}/, 'its value starts with a random token');
my $a_pid = $session_a->pid;
like($value, qr/\bhost="\S+"/, 'and tells the host');
like($value, qr/\bdatabase="postgres"/, 'the database');
like($value, qr/\bpid=$a_pid\b/, 'the process');
like($value, qr/\buser=\S+/, 'and the user who holds it');

my $timeout = $session_b->run("SELECT redlock_acquire('job', wait => '300 ms')");
is($timeout->{state}, '55P03', 'an acquire that waits for it times out');
like($timeout->{message}, qr/^could not acquire redlock "job" within /, 'says so');
like($timeout->{detail}, qr/\bpid=$a_pid\b/, 'and says who holds it');

$session_a->query('COMMIT');
becomes_free('job', 'B gets the lock after A committed');

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
is_taken('job', 'B is refused again');
$session_a->query('ROLLBACK');
becomes_free('job', 'B gets the lock after A rolled back');

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
$session_a->run('SELECT 1/0');
$session_a->query('ROLLBACK');
becomes_free('job', 'B gets the lock after the transaction of A failed');

# ---- a waiting acquire ----

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
$session_b->query('BEGIN');
$session_b->send("SELECT redlock_acquire('job') > 0");
ok( $host_b->poll_query_until(
		'postgres',
		"SELECT state = 'waiting' AND held_by LIKE '%pid=$a_pid %' FROM redlock_locks WHERE resource = 'job'"
	),
	'B waits, and its view tells for whom');
ok(!$session_b->done, 'B does not get it while A holds it');
$session_a->query('COMMIT');
is($session_b->result->{out}, 't', 'B gets it when A commits');
is($session_a->query("SELECT redlock_try('job')"), 'f', 'now A is refused');
$session_b->query('COMMIT');
wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'no key is left', 30);

# ---- the lock is released only when the commit is visible ----

$host_a->safe_psql('postgres', 'CREATE TABLE seen (n int)');
my $a2 = session($host_a);
foreach my $n (1 .. 20)
{
	$session_a->query("BEGIN; SELECT redlock_acquire('job')");
	$a2->query('BEGIN');
	$a2->send("SELECT redlock_acquire('job') > 0");
	$session_a->query("INSERT INTO seen VALUES ($n)");
	$session_a->query('COMMIT');
	$a2->result;
	my $count = $a2->query('SELECT count(*) FROM seen');
	$a2->query('COMMIT');
	is($count, $n, "holder $n sees what the one before it wrote") if $count != $n || $n == 20;
}

# ---- savepoints ----

$session_a->query("BEGIN; SELECT redlock_acquire('outer'); SAVEPOINT s; SELECT redlock_acquire('inner')");
$session_a->query('ROLLBACK TO s');
becomes_free('inner', 'rolling back to a savepoint releases what was taken after it');
is_taken('outer', 'but not what was taken before it');
$session_a->query("SELECT redlock_acquire('inner'); RELEASE s");
is_taken('inner', 'releasing a savepoint releases no lock');
$session_a->query('COMMIT');
becomes_free('inner', 'the end of the transaction does');
becomes_free('outer', 'for all its locks');

# ---- session scope ----

is($session_a->query("SELECT redlock_try('job', scope => 'session')"), 't', 'A takes the lock for its session');
is_taken('job', 'it survives the end of the transaction');
$session_a->query('BEGIN; SELECT 1; ROLLBACK');
is_taken('job', 'and a rollback');
is($session_a->query("SELECT redlock_release('job')"), 't', 'A releases it');
becomes_free('job', 'B gets it');

$session_a->query("SELECT redlock_acquire('job', scope => 'session')") for 1 .. 2;
is($session_a->query("SELECT redlock_release('job')"), 't', 'one of two acquisitions is released');
is_taken('job', 'the lock stays');
is($session_a->query("SELECT redlock_release('job')"), 't', 'the second is released');
becomes_free('job', 'the lock is free');

$session_a->query("SELECT redlock_acquire(name, scope => 'session') FROM unnest('{j1,j2,j3}'::text[]) name");
is($session_a->query('SELECT redlock_release_all()'), '3', 'all can be released at once');
becomes_free($_, "$_ is free") for qw(j1 j2 j3);

$session_a->query("SELECT redlock_acquire('job', scope => 'session')");
$session_a->query('DISCARD ALL');
becomes_free('job', 'DISCARD ALL releases the locks of a session');

my $short = session($host_a);
$short->query("SELECT redlock_acquire('job', scope => 'session')");
is_taken('job', 'a session holds the lock');
$short->quit;
becomes_free('job', 'the end of a session releases its locks');

$short = session($host_a);
$short->query("SELECT redlock_acquire('job', scope => 'session')");
$short->vanish;
becomes_free('job', 'a lock is free after the death of the client');

# ---- a transaction with a lock cannot be prepared ----

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
my $prepare = $session_a->run("PREPARE TRANSACTION 'p'");
is($prepare->{state}, '0A000', 'a transaction with a lock can not be prepared');
$session_a->query('ROLLBACK');
becomes_free('job', 'and the lock is released');

# ---- plain Redlock clients ----

$_->cli('SET', 'redlock:job', 'somebody else', 'NX', 'PX', '60000') for @nodes[ 0 .. 2 ];
is($session_a->query("SELECT redlock_try('job')"), 'f', 'a plain client with a majority excludes us');
$timeout = $session_a->run("SELECT redlock_acquire('job', wait => '300 ms')");
is($timeout->{state}, '55P03', 'and lets us wait');
like($timeout->{detail}, qr/somebody else/, 'for the holder that its value names');
wait_until(sub { key_count('redlock:job', @nodes[ 3, 4 ]) == 0 },
	'we leave no key on the other nodes', 30);
is($nodes[0]->cli('GET', 'redlock:job'), 'somebody else', "and do not touch its keys");

$nodes[0]->cli('DEL', 'redlock:job');
$session_a->query('BEGIN');
is($session_a->query("SELECT redlock_try('job')"), 't', 'a plain client with a minority does not');
wait_until(sub { key_count('redlock:job', @nodes[ 0, 3, 4 ]) == 3 }, 'our key is on the majority');
is($_->cli('SET', 'redlock:job', 'intruder', 'NX', 'PX', '60000'),
	'', 'our key refuses a plain client')
  for @nodes[ 0, 3, 4 ];
$session_a->query('COMMIT');
wait_until(sub { key_count('redlock:job', @nodes[ 0, 3, 4 ]) == 0 }, 'our keys are deleted', 30);
is($nodes[1]->cli('GET', 'redlock:job'), 'somebody else', 'those of the plain client are not');

$_->quit for $session_a, $session_b, $a2;
done_testing();

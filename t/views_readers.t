# Looking at locks and nodes keeps no session waiting.
#
# Protects from: a view open to any role, holding a lock of the broker or of an acquire while the
# view makes rows, or is stopped.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'");
my ($holder, $worker) = (session($host), session($host));
my @readers = map { session($host) } 1 .. 6;

$holder->query("SELECT redlock_acquire('held ' || i, scope => 'session') FROM generate_series(1, 500) i");
# Each reader calls the functions behind the views again and again in one statement: the rest of
# the views, and the start of a statement, take PostgreSQL's own locks.
$_->send(<<'SQL') foreach @readers;
SELECT count((SELECT count(*) FROM (SELECT redlock_lock_rows() UNION ALL SELECT redlock_node_rows()) s WHERE i > 0))
  FROM (SELECT generate_series(1, 1000000000) AS i) g
SQL

# The readers are stopped at any point.  Other sessions need nothing that a reader holds.
$worker->query("SET statement_timeout = '30 s'");
my ($done, $rounds, $error) = (0, 60, '');
foreach my $round (1 .. $rounds)
{
	kill 'STOP', map { $_->pid } @readers;
	my $result = $worker->run("SELECT redlock_try('job', scope => 'session') AND redlock_release('job')");
	kill 'CONT', map { $_->pid } @readers;
	if ($result->{out} eq 't') { $done++ } else { $error = $result->{err} }
	last if $error ne '';
}
is("$done $error", "$rounds ", "while $rounds times all readers were stopped, a lock was taken and released");

# The broker changes the state under the readers.
$nodes[0]->pause;
$host->poll_query_until('postgres', "SELECT state <> 'ready' FROM redlock_nodes WHERE node = '" . $nodes[0]->address . "'")
  or die 'the node does not fail';
kill 'STOP', map { $_->pid } @readers;
$nodes[0]->resume;
is($worker->query("SELECT redlock_try('job', scope => 'session')"), 't', 'a lock is taken while a node comes back');
ok($host->poll_query_until('postgres', "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'"),
	'and the broker tells of the node');
kill 'CONT', map { $_->pid } @readers;

# all rows are there and complete
is($worker->query(<<'SQL'), '501|501|501', 'the view has all locks');
SELECT count(*), count(*) FILTER (WHERE state = 'held' AND token > 0 AND valid_for > '0'), count(DISTINCT resource)
  FROM redlock_locks
SQL
$host->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $_->pid . ')') foreach @readers;
$_->quit foreach @readers, $holder, $worker;
done_testing();

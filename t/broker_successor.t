# The broker can be terminated at any moment.  The next broker takes over from shared memory, and
# no session notices.
#
# Protects from: a lease lost, or no longer renewed, with the broker; a waiter waiting for ever; a
# release forgotten, or waiting for nodes; an error about a missing quorum when only the broker
# was missing.

use strict;
use warnings;

use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(5);
my $ttl_s = 3;    # the postmaster restarts a broker after a second
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '${ttl_s}s'");
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => "redlock.ttl = '${ttl_s}s'");
my $session_a = session($host_a);
my $session_b = session($host_b);

# ---- a held lease ----

$session_a->query("SELECT redlock_acquire('job', scope => 'session')");
$session_a->query("BEGIN; SELECT redlock_acquire('in transaction')");
foreach (1 .. 2)
{
	my $renewed = $session_a->query('SELECT renewed FROM redlock_stats');
	replace_broker($host_a);
	ok($host_a->poll_query_until('postgres', "SELECT renewed >= $renewed + 2 FROM redlock_stats"),
		'the new broker renews both leases');
}

my ($granted, $checks) = (0, 0);
my $end = time + 3 * $ttl_s;
while (time < $end)
{
	$granted++ if $session_b->query("SELECT redlock_try('job')") eq 't';
	$granted++ if $session_b->query("SELECT redlock_try('in transaction')") eq 't';
	$session_a->query("SELECT redlock_check('job'), redlock_check('in transaction')");
	$checks++;
}
is($granted, 0, "the locks were not granted elsewhere in three ttls ($checks looks)");
is($session_a->query('SELECT lost FROM redlock_stats'), '0', 'no lease was lost');
is( $session_a->query("SELECT count(*) FROM redlock_locks WHERE state = 'held' AND pid = pg_backend_pid()"),
	'2', 'the view shows both as held');

$session_a->query('COMMIT');
is($session_a->query("SELECT redlock_release('job')"), 't', 'the lock can be released');
wait_until(sub { $session_b->query("SELECT redlock_try('job')") eq 't' }, 'and is free for the other host');

# ---- a waiting session ----

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
$session_b->query('BEGIN');
$session_b->send("SELECT redlock_acquire('job') > 0");
ok( $host_b->poll_query_until('postgres',
		"SELECT state = 'waiting' FROM redlock_locks WHERE resource = 'job'"),
	'B waits for A');
replace_broker($host_b);
ok(!$session_b->done, 'B still waits');
replace_broker($host_a);
ok(!$session_b->done, 'B still waits when the broker of the holder is replaced');
$session_a->query('COMMIT');
is($session_b->result->{out}, 't', 'B gets the lock when A commits');
replace_broker($host_b);
is($session_a->query("SELECT redlock_try('job')"), 'f', 'and keeps it');
$session_b->query('COMMIT');

# ---- a release just before ----

# The ttl is longer than the wait below, so only a release deletes the keys.
foreach my $round (1 .. 3)
{
	$session_a->query("BEGIN; SELECT redlock_acquire('job', ttl => '60 s')");
	my $pid = broker_pid($host_a);
	kill 'STOP', $pid;
	kill 'TERM', $pid;
	$session_a->query('COMMIT');
	kill 'CONT', $pid;
	wait_until(sub { key_count('redlock:job', @nodes) == 0 },
		"a release that the broker has not seen yet is done ($round)", 30);
	wait_until(sub { broker_pid($host_a) =~ /^(?!$pid$)\d+$/ }, 'the broker is replaced');
}

# ---- a release before each node was probed once ----

# A new broker serves no request before each node is probed once.  A node hangs, so the probes take
# redlock.node_timeout.  The new broker must release the locks released in this time, and must not
# renew their leases.
$session_a->query("SELECT redlock_acquire(name, ttl => '60 s', scope => 'session') FROM unnest('{job,gap}'::text[]) name");
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '60s'");
$host_a->reload;
wait_until(sub { $session_a->query('SHOW redlock.node_timeout') eq '1min' }, 'nodes have a minute');
$nodes[4]->pause;
my $ended = broker_pid($host_a);
kill 'TERM', $ended;
wait_until(sub { broker_pid($host_a) !~ /^$ended$/ }, 'the broker ends');
$session_a->query("SELECT redlock_release('gap')");
wait_until(sub { broker_pid($host_a) =~ /^(?!$ended$)\d+$/ }, 'and is replaced');
$session_a->query("SELECT redlock_release('job')");
wait_until(sub { key_count('redlock:job', @nodes) == 0 },
	'a new broker releases a lock that was released after its start', 30);
wait_until(sub { key_count('redlock:gap', @nodes) == 0 },
	'and a lock that was released while there was no broker', 30);
$nodes[4]->resume;
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '1s'");
$host_a->reload;
wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'on the node that hung, too', 30);

# ---- the broker ends after sending a release, before a node reads the release ----

# The nodes hang, and are killed before they read the release, so the next broker must send the
# release again.  With the long redlock.node_timeout the broker ends before the release times out.
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '20s'");
$host_a->reload;
$host_a->poll_query_until('postgres', "SELECT setting = '20000' FROM pg_settings WHERE name = 'redlock.node_timeout'");
$session_a->query("SELECT redlock_acquire('job', ttl => '60 s', scope => 'session')");
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
my $released = $session_a->query('SELECT released FROM redlock_stats');
$_->pause foreach @nodes;
$session_a->query("SELECT redlock_release('job')");
ok($host_a->poll_query_until('postgres', "SELECT released > $released AND releasing = 1 FROM redlock_stats"),
	'a release is out');
replace_broker($host_a);
$_->restart foreach @nodes;
wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'the next broker sends it again', 30);
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '500ms'");
$host_a->reload;
wait_nodes_ready($_, 5) foreach $host_a, $host_b;

# ---- an acquire while the broker ends ----

foreach my $round (1 .. 3)
{
	my $pid = broker_pid($host_a);
	kill 'STOP', $pid;
	$session_a->query('BEGIN');
	$session_a->send("SELECT redlock_acquire('job') > 0");
	kill 'TERM', $pid;
	kill 'CONT', $pid;
	is($session_a->result->{out}, 't', "an acquire outlives the broker it was given to ($round)");
	$session_a->query('COMMIT');
	wait_until(sub { broker_pid($host_a) =~ /^(?!$pid$)\d+$/ }, 'the broker is replaced');
}
wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'no key is left');

# ---- the broker ends after sending a request ----

# A majority is silent for a moment.  The second without a broker does not count as time without a
# quorum.
my $watch = session($host_a);
foreach my $round (1 .. 3)
{
	my $pid = broker_pid($host_a);
	$_->pause foreach @nodes[ 0 .. 2 ];
	$session_a->send("SELECT redlock_acquire('silent', wait => '20 s', scope => 'session') > 0");
	wait_until(
		sub { $watch->query("SELECT state FROM redlock_locks WHERE resource = 'silent'") eq 'waiting' },
		'a request is out');
	kill 'TERM', $pid;
	wait_until(sub { broker_pid($host_a) !~ /^$pid$/ }, 'the broker ends');
	$_->resume foreach @nodes[ 0 .. 2 ];
	is($session_a->result->{out}, 't', "it is granted by the next broker ($round)");
	$session_a->query("SELECT redlock_release('silent')");
	wait_until(sub { broker_pid($host_a) =~ /^(?!$pid$)\d+$/ }, 'the broker is replaced');
}

$watch->quit;

# With requests in a row, a request is under way most of the time.
my @busy = map { session($host_a) } 1 .. 3;
my $kills = 3;
foreach my $i (0 .. $#busy)
{
	repeat($busy[$i], <<SQL);
		PERFORM redlock_acquire('busy $i', scope => 'session');
		PERFORM redlock_release('busy $i');
		IF redlock_try('tried $i', scope => 'session') THEN
			PERFORM redlock_release('tried $i');
		END IF
SQL
}
foreach (1 .. $kills)
{
	my $granted = $session_a->query('SELECT granted FROM redlock_stats');
	ok($host_a->poll_query_until('postgres', "SELECT granted > $granted + 50 FROM redlock_stats"),
		'requests are granted');
	replace_broker($host_a);
}
end_repeats($host_a);
is($_->result->{err}, '', 'no request failed for want of a broker') foreach @busy;
$_->quit foreach @busy;
wait_until(sub { $session_b->query("SELECT redlock_try('busy 0')") eq 't' }, 'the locks are free');

is($session_a->query('SELECT lost FROM redlock_stats'), '0', 'no lease was lost on A');
is($session_b->query('SELECT lost FROM redlock_stats'), '0', 'nor on B');

$_->quit for $session_a, $session_b;
done_testing();

# A minority of the nodes may be dead or hang.  Without a majority an error names the silent nodes,
# and no key stays.
#
# Protects from: a dead node delaying or stopping the live nodes, or costing them a beat for each
# attempt to connect to it; a quorum of the reachable nodes; an error blaming the wrong node;
# half-won rounds blocking the lock until they expire (the ttl is longer than any wait here).

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '60s'\nredlock.node_timeout = '500ms'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $session_a = session($host_a);
my $session_b = session($host_b);

sub no_key_left
{
	my ($name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 }, $description, 30);
}

# Checks that A excludes B, and B excludes A, by the live nodes.
sub works
{
	my ($when) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session_a->query('BEGIN');
	is($session_a->query("SELECT redlock_try('job')"), 't', "$when: A takes the lock");
	is($session_b->query("SELECT redlock_try('job')"), 'f', "$when: B is refused");
	$session_a->query('COMMIT');
	wait_until(sub { $session_b->query("SELECT redlock_try('job')") eq 't' },
		"$when: B gets it after A committed", 30);
	no_key_left('job', "$when: no key is left");
}

# Checks that the error names exactly these nodes.
sub no_quorum
{
	my ($session, $sql, $when, @dead) = @_;
	my $host   = $session == $session_a ? $host_a : $host_b;
	my $count  = sub { $host->safe_psql('postgres', 'SELECT unreachable FROM redlock_stats') };
	my $before = $count->();
	my $result = $session->run($sql);
	my %dead   = map { $_->address => 1 } @dead;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '08006', "$when: no quorum is a connection failure");
	is($count->(), $before + 1, "$when: it is counted");
	like( $result->{message},
		qr/^no quorum of redlock nodes could be reached\b/,
		"$when: the message says so");
	is( join(' ', sort grep { $result->{detail} =~ /\Q$_\E\b/ } map { $_->address } @nodes),
		join(' ', sort keys %dead),
		"$when: the detail names the nodes that failed, and only them");
}

# Acquires and releases many locks in a row; returns the median time that an
# acquire took, in milliseconds.
sub median_ms
{
	my ($session, $rounds, $ttl) = @_;
	my $result = $session->run(<<~SQL);
		DO \$\$
		DECLARE
		    started timestamptz;
		    times float[];
		BEGIN
		    FOR i IN 1 .. $rounds LOOP
		        started := clock_timestamp();
		        PERFORM redlock_acquire('timed ' || i, ttl => '$ttl', scope => 'session');
		        times := times || 1000 * extract(epoch FROM clock_timestamp() - started)::float;
		        PERFORM redlock_release('timed ' || i);
		    END LOOP;
		    RAISE NOTICE 'median %', (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY t) FROM unnest(times) t);
		END \$\$
		SQL
	return $result->{err} =~ /median ([0-9.e-]+)/ ? $1 : undef;
}

# ---- two of five ----

works('all nodes up');
$_->pause for @nodes[ 1, 3 ];
works('two nodes hang');
$_->resume for @nodes[ 1, 3 ];
wait_nodes_ready($_, 5) for $host_a, $host_b;

# The benchmark measures the cost.  Here: no session waits for hanging nodes, which would take
# redlock.node_timeout.
$_->pause for @nodes[ 1, 3 ];
my $median = median_ms($session_a, 300, '1 s') // die 'no locks';
$_->resume for @nodes[ 1, 3 ];
wait_nodes_ready($host_a, 5);
cmp_ok($median, '<', 500 / 4, 'acquire does not wait for two of five nodes that are stopped');

# Releases owed to these nodes must not delay new locks, not even before the nodes count as failed.
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '10s'");
$host_a->reload;
$host_a->poll_query_until('postgres', 'SHOW redlock.node_timeout', '10s') or die 'no reload';
$_->pause for @nodes[ 1, 3 ];
ok(defined median_ms($session_a, 4000, '60 s'),
	'two nodes that hang do not use up the table of locks');
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '500ms'");
$host_a->reload;
$host_a->poll_query_until('postgres', 'SHOW redlock.node_timeout', '500ms') or die 'no reload';
$_->resume for @nodes[ 1, 3 ];
wait_nodes_ready($_, 5) for $host_a, $host_b;
no_key_left('job', 'the nodes that hung keep no key');

$_->kill9 for @nodes[ 0, 4 ];
works('two nodes are dead');
foreach my $host ($host_a, $host_b)
{
	ok( $host->poll_query_until(
			'postgres',
			"SELECT count(*) FILTER (WHERE state <> 'ready' AND last_error <> '') = 2
			    AND count(*) FILTER (WHERE state = 'ready') = 3 FROM redlock_nodes"),
		'the view shows two nodes down, with a reason, on ' . $host->name);
}
$_->start for @nodes[ 0, 4 ];
wait_nodes_ready($_, 5) for $host_a, $host_b;
works('after their return');

# ---- a node that restarts, or loses its data, while a lock is held ----

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
$nodes[2]->restart;
is($session_b->query("SELECT redlock_try('job')"), 'f', 'a node that restarts frees no lock');
wait_nodes_ready($_, 5) for $host_a, $host_b;
is($session_b->query("SELECT redlock_try('job')"), 'f', 'nor when it votes again');
$session_a->query('COMMIT');
no_key_left('job', 'it is released as ever');

# After a loss of data a node does not vote for the length of redlock.max_ttl, so max_ttl is short
# in this part.
sub set_max_ttl
{
	my ($max_ttl) = @_;

	foreach my $host ($host_a, $host_b)
	{
		$host->append_conf('postgresql.conf', "redlock.max_ttl = '$max_ttl'");
		$host->reload;
		$host->poll_query_until('postgres', 'SHOW redlock.max_ttl', $max_ttl) or die 'no reload';
	}
	# a host refuses locks until the other host's entry has the new setting
	foreach my $host ($host_a, $host_b)
	{
		wait_until(sub { psql_result($host, "SELECT redlock_try('settings', ttl => '3 s')")->{out} eq 't' }, "both have a max_ttl of $max_ttl");
	}
}
set_max_ttl('3s');
$session_a->query("BEGIN; SELECT redlock_acquire('job', ttl => '3 s')");
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
$nodes[2]->restart(empty => 1);
is($session_b->query("SELECT redlock_try('job', ttl => '3 s')"),
	'f', 'a node that restarts empty frees no lock');
wait_until(sub { key_count('redlock:job', $nodes[2]) == 1 }, 'it has the key again');
wait_nodes_ready($_, 5) for $host_a, $host_b;
is($session_b->query("SELECT redlock_try('job', ttl => '3 s')"), 'f', 'nor when it votes again');
$session_a->query('COMMIT');
no_key_left('job', 'it is released as ever');
set_max_ttl('1min');

# ---- a majority hangs ----

my @hang = @nodes[ 0, 2, 3 ];
$_->pause for @hang;
my $result = $session_a->run(<<~'SQL');
	DO $$
	DECLARE
	    started timestamptz := clock_timestamp();
	    state text;
	BEGIN
	    PERFORM redlock_try('half');
	    RAISE NOTICE 'granted';
	EXCEPTION WHEN OTHERS THEN
	    RAISE NOTICE '% after % ms', SQLSTATE,
	        (1000 * extract(epoch FROM clock_timestamp() - started))::int;
	END $$
	SQL
my ($state, $ms) = $result->{err} =~ /NOTICE:  \S+ (\w+) after (\d+) ms/;
is($state, '08006', 'a try without a quorum is an error');
cmp_ok($ms // 'inf', '<=', 1000, 'that comes within twice node_timeout');
no_quorum($session_a, "SELECT redlock_try('half')", 'three nodes hang', @hang);
no_quorum($session_b, "SELECT redlock_try('half')", 'three nodes hang, the other host', @hang);
no_quorum($session_a, "SELECT redlock_acquire('half', wait => '2 s')", 'three nodes hang, acquire', @hang);
# the error is the same if the wait is over before the nodes count as failed
no_quorum($session_a, "SELECT redlock_acquire('half', wait => '$_ ms')", "three nodes hang, wait $_ ms", @hang)
  foreach 50, 300;
no_quorum($session_a, "CALL redlock_run('half', 'SELECT 1', wait => '$_ ms')", "three nodes hang, redlock_run, wait $_ ms", @hang)
  foreach 50, 300;
wait_until(sub { key_count('redlock:half', @nodes[ 1, 4 ]) == 0 },
	'the living nodes keep no key of the half-won rounds', 30);

$_->resume for @hang;
wait_nodes_ready($_, 5) for $host_a, $host_b;
no_key_left('half', 'no key is left at the nodes that hung');
works('after they went on');

# ---- a majority is dead ----

my @dead = @nodes[ 1, 2, 4 ];
$_->kill9 for @dead;
no_quorum($session_a, "SELECT redlock_try('half')", 'three nodes are dead', @dead);
no_quorum($session_a, "BEGIN; SELECT redlock_acquire('half', wait => '2 s')", 'acquire', @dead);
$session_a->query('ROLLBACK');
wait_until(sub { key_count('redlock:half', @nodes[ 0, 3 ]) == 0 },
	'the living nodes keep no key', 30);

$_->kill9 for @nodes[ 0, 3 ];
no_quorum($session_a, "SELECT redlock_try('half')", 'all nodes are dead', @nodes);

# "skipped" would mean that another host runs the job: without a quorum the run fails
foreach my $wait ('0', '300 ms', '2 s')
{
	no_quorum($session_a, "CALL redlock_run('half', 'SELECT 1', wait => '$wait')", "redlock_run, wait $wait", @nodes);
}
$session_a->query("SET lock_timeout = '300 ms'");
no_quorum($session_a, "CALL redlock_run('half', 'SELECT 1', wait => NULL)", 'redlock_run, lock_timeout', @nodes);
$session_a->query('RESET lock_timeout');

# A call with a time to wait waits for the nodes, too: when a whole site starts, the nodes may come
# last.
$session_a->send("BEGIN; SELECT redlock_acquire('patient', wait => '10 min') > 0");
my $patient = session($host_a);    # behind session_a at the gate
$patient->send("SELECT redlock_acquire('patient', wait => '10 min', scope => 'session') > 0");
no_quorum($session_b, "SELECT redlock_acquire('patient')", 'a call without one does not', @nodes) for 1 .. 2;
ok(!$session_a->done, 'a waiter with a time to wait goes on when that is over for others');

$_->start for @nodes;
wait_nodes_ready($_, 5) for $host_a, $host_b;
is($session_a->result->{out}, 't', 'and gets the lock when the nodes are there');
$session_a->query('COMMIT');
is($patient->result->{out}, 't', 'the next waiter gets the lock, too');
$patient->quit;
works('after all came back');

# ---- nodes without the script are sent its text again ----

my $locks = 40;    # released together: more than a call of the script has room for
my $failed = "SELECT string_agg(votes_error || last_error, ' ' ORDER BY node) FROM redlock_nodes";
my $failed_before = $host_a->safe_psql('postgres', $failed);

$session_a->query(
	"SELECT count(redlock_acquire('many ' || n, scope => 'session')) FROM generate_series(1, $locks) n");
is(join(' ', map { key_count("redlock:many $_", @nodes) } 1, $locks), '5 5', 'all nodes have the keys');
$_->cli('SCRIPT', 'FLUSH') for @nodes;
is($session_a->query('SELECT redlock_release_all()'), $locks, 'all are released');
no_key_left("many $_", "no key of lock $_ is left") for 1, $locks / 2, $locks;
$_->cli('SCRIPT', 'FLUSH') for @nodes;
works('without the script');
is($host_a->safe_psql('postgres', $failed), $failed_before, 'no node is said to have failed');

# Two nodes report the missing script after the remaining nodes have decided.  The two nodes are
# stopped for less than node_timeout.
my @late = @nodes[ 1, 3 ];
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '59s'");
$host_a->reload;
$host_a->poll_query_until('postgres', 'SHOW redlock.node_timeout', '59s') or die 'no reload';
foreach my $what ('granted', 'refused')
{
	my $on_other = "SELECT redlock_acquire('late', scope => 'session')";

	$session_b->query($on_other) if $what eq 'refused';
	$_->cli('SCRIPT', 'FLUSH') for @late;
	$_->pause for @late;
	is($session_a->query("BEGIN; SELECT redlock_try('late')"),
		$what eq 'granted' ? 't' : 'f', "a lock is $what by a majority");
	$_->resume for @late;
	# a late node receives the text after its answer to the command before
	my ($next, $there) = (0, 0);
	wait_until(
		sub {
			$next++;
			$session_a->query("SELECT redlock_acquire('next $next', scope => 'session')");
			wait_until(sub { key_count("redlock:next $next", @nodes) >= 3 }, 'the next one is granted');
			$there = key_count("redlock:next $next", @late);
			return $there == @late;
		},
		'the late nodes have the script again');
	$session_a->query('COMMIT; SELECT redlock_release_all()');
	$session_b->query('SELECT redlock_release_all()') if $what eq 'refused';
	no_key_left('late', "$what late: no key is left");
	is($host_a->safe_psql('postgres', $failed), $failed_before,
		"$what late: no node is said to have failed");
}
$host_a->append_conf('postgresql.conf', "redlock.node_timeout = '500ms'");
$host_a->reload;
$host_a->poll_query_until('postgres', 'SHOW redlock.node_timeout', '500ms') or die 'no reload';

# ---- a waiter gets the lock although a node restarts and another node hangs ----

$session_a->query("BEGIN; SELECT redlock_acquire('job')");
$session_b->query('BEGIN');
$session_b->send("SELECT redlock_acquire('job') > 0");
ok( $host_b->poll_query_until('postgres',
		"SELECT state = 'waiting' FROM redlock_locks WHERE resource = 'job'"),
	'B waits');
$nodes[0]->restart;
$nodes[4]->pause;
$session_a->query('COMMIT');
is($session_b->result->{out}, 't', 'B gets the lock though a node restarted and one hangs');
$session_b->query('COMMIT');
$nodes[4]->resume;
no_key_left('job', 'no key is left');

# ---- a dead node costs the live nodes nothing ----

$_->quit for $session_a, $session_b;
$_->stop for $host_a, $host_b;
{
	my ($dead, $live, $third) = @nodes;
	my $host = redlock_cluster('idle', nodes => [ $dead, $live, $third ], conf => $conf);
	my $address = $dead->address;
	my $attempts = sub { return $host->safe_psql('postgres', "SELECT connection_errors FROM redlock_stat_nodes WHERE node = '$address'"); };
	# an idle host checks connections by INFO: each EVALSHA is a beat
	my $beats = sub { return ($live->cli(qw(INFO commandstats)) =~ /^cmdstat_evalsha:calls=(\d+)/m)[0]; };

	wait_until(sub { psql_result($host, "SELECT redlock_try('settings')")->{out} eq 't' }, 'a host has asked the nodes about other hosts');
	no_key_left('settings', 'and is idle');
	$dead->kill9;
	# pauses between attempts are short at first
	wait_until(sub { $attempts->() >= 6 }, 'the broker tries to connect to a dead node');
	my ($attempts_before, $beats_before) = ($attempts->(), $beats->());
	wait_until(sub { $attempts->() >= $attempts_before + 10 }, 'again and again');
	# a beat each ten seconds, and a beat about the dead node
	cmp_ok($beats->() - $beats_before, '<=', 3, 'and beats rarely at a live node');
	$host->stop;
}

done_testing();

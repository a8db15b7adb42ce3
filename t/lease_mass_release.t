# Sessions release many locks at once, while other sessions hold locks and ask for locks.
#
# Protects from: renewals and requests queuing behind thousands of releases, so that short leases
# are lost and sessions miss a quorum; a lock whose release overtakes its next request, or comes
# after it; releases forgotten in a queue, also at shutdown.
#
# The order at a node counts here, not the time: all times allow for a busy machine.
#
# LOCKS=n in the environment is the number of released locks.

use strict;
use warnings;

use IO::Socket::INET;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $sessions = 4;
my $locks = ($ENV{LOCKS} // 24000) / $sessions;
my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes,
	conf => "redlock.ttl = '60s'\nredlock.node_timeout = '10s'\nredlock.max_locks = " . ($sessions * $locks + 100)
	  . "\nredlock.max_locks_per_session = 1000000\nmax_locks_per_transaction = 4096");

sub stats
{
	my ($columns) = @_;
	return $host->safe_psql('postgres', "SELECT $columns FROM redlock_stats");
}

sub all_paid
{
	return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource LIKE 'many%'") == 0;
}

# Returns the number of keys of the many locks at each node.  The keys expire long after this test.
sub keys_left
{
	my $pattern = 'redlock:many*';
	return join ' ', map {
		$_->cli('EVAL', q{local n = 0 for _, k in ipairs(redis.call('KEYS', ARGV[1])) do
			if not string.find(k, '\0', 1, true) then n = n + 1 end end return n}, 0, $pattern)
	} @_;
}

sub take_many
{
	my ($many) = @_;

	foreach my $i (0 .. $#$many)
	{
		$many->[$i]->query('BEGIN');
		$many->[$i]->send("SELECT count(redlock_acquire('many $i ' || n)) FROM generate_series(1, $locks) n");
	}
	is($_->result->{out}, $locks, "a session has $locks locks") foreach @$many;
}

my @many = map { session($host) } 1 .. $sessions;
take_many(\@many);

# ---- a later request, and a renewal, do not queue behind the releases ----

# The commands of each node, in order.
my @monitors = map { IO::Socket::INET->new('127.0.0.1:' . $_->port) // die $! } @nodes;
$_->syswrite("MONITOR\r\n") foreach @monitors;
$_->getline foreach @monitors;

my $late = session($host);
my $holder = session($host);
$holder->query("SELECT redlock_acquire('held', ttl => '15 s', scope => 'session')");
my $renewal_due = time + 15 / 3;
my $broker = broker_pid($host);
kill 'STOP', $broker;
$_->query('COMMIT') foreach @many;
$late->send("SELECT redlock_acquire('late', scope => 'session') > 0");
ok( $host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'late'"),
	'a request comes after all releases');
sleep 0.1 while time <= $renewal_due;
kill 'CONT', $broker;
is($late->result->{out}, 't', 'it is granted');
foreach my $monitor (@monitors)
{
	my %before;
	my $released = 0;
	while (keys %before < 2 and my $line = $monitor->getline)
	{
		$before{request} //= $released if $line =~ /"redlock:late"/;
		$before{renewal} //= $released if $line =~ /renew\\x00redlock:held/;
		$released++ if $line =~ /lua\] "DEL"/;
	}
	cmp_ok($before{$_}, '<', 1000, "a node executes few of $locks x $sessions releases before a $_") foreach qw(request renewal);
}
close $_ foreach @monitors;

# ---- nothing is lost, and nothing forgotten ----

my @busy = map { session($host) } 0 .. 1;
foreach my $i (0 .. $#busy)
{
	repeat($busy[$i], "PERFORM redlock_acquire('busy $i', scope => 'session'); PERFORM redlock_release('busy $i')");
}
my $granted = stats('granted');
wait_until(sub { all_paid() }, 'no node is owed anything');
is(keys_left(@nodes), '0 0 0', 'all keys are gone');
wait_until(sub { stats('granted') > $granted }, 'others were granted theirs meanwhile');
is(stats('lost, unreachable'), '0|0', 'no lease was lost, and no quorum missed');
end_repeats($host);
is($_->result->{err}, '', 'no request failed') foreach @busy;
is($holder->run("SELECT redlock_release('held')")->{out}, 't', 'a short lease was valid all the time');

# ---- the next session asks for the same names at once ----

take_many(\@many);
my @next = map { session($host) } 0 .. 1;
my $refused = stats('refused');
$_->send('COMMIT') foreach @many;
foreach my $i (0 .. $#next)
{
	# a try is refused if it comes before the release
	$next[$i]->send("SELECT count(*) FROM generate_series($locks - 300, $locks) n"
		  . " WHERE NOT redlock_try('many $i ' || n)");
}
$_->result foreach @many;
is($_->result->{state}, '', 'tries are answered') foreach @next;
is(stats('refused'), $refused, 'no request found a key of its own host in its way');
$_->quit foreach @next;
wait_until(sub { all_paid() }, 'no node is owed anything');

# ---- a node hangs during the releases, and comes back ----

take_many(\@many);
$nodes[2]->pause;
$_->query('COMMIT') foreach @many;
wait_until(sub { keys_left(@nodes[ 0, 1 ]) eq '0 0' }, 'a hanging node does not hold up the others');
is(stats('locks <= 1, releasing > 0'), 't|t', 'releases that a node still owes do not count as locks');
$nodes[2]->resume;
wait_until(sub { all_paid() }, 'the node gets the releases when it is back');
is(stats('releasing'), 0, 'then nothing is left of them');
is(keys_left(@nodes), '0 0 0', 'all keys are gone');
is(stats('lost, unreachable'), '0|0', 'no lease was lost, and no quorum missed');

# ---- shutdown ----

take_many(\@many);
my $result = $late->run("SELECT redlock_acquire('more ' || n, scope => 'session') FROM generate_series(1, 1000) n");
is($result->{state}, '53400', 'there is an end to the room');
is(stats('locks = max_locks'), 't', 'which the view shows');
$late->query('SELECT redlock_release_all()');
$host->stop('fast');
is(keys_left(@nodes), '0 0 0', 'a shutdown waits for all releases');

done_testing();

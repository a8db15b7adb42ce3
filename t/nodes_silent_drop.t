# Connections that are dead without a sign, as after a firewall has forgotten them.  New
# connections work.
#
# Protects from: a first request after a quiet time missing a quorum; a dead connection found only
# by a request; a subscription hearing nothing any more; checks without an end, or too many; a clean
# stop without the releases that were lost with a connection.
#
# A node is a proxy whose connections hang on command, see HostileNode.  redlock.node_timeout has
# room for a new connection, and for two checks, of which the first must count.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my @redis = redis_nodes(3);
my @nodes = map { HostileNode->new($_) } @redis;
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.node_timeout = '6s'\nredlock.ttl = '60s'");
my $s     = session($host);

# Drops all present connections, $number at each node.
sub drop_connections
{
	my ($number) = @_;
	my @before = map { $_->hung } @nodes;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$_->obey([ '^NOW', 'hang' ]) foreach @nodes;
	wait_until(sub { !grep { $nodes[$_]->hung != $before[$_] + $number } 0 .. $#nodes },
		"all connections are dropped, $number at each node");
	$_->obey foreach @nodes;
	return;
}

# Waits until each node has a connection for messages from each host.
sub hears_nodes
{
	my ($hosts) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { !grep { $hosts != (() = $_->cli(qw(CLIENT LIST TYPE pubsub)) =~ /^id=/mg) } @redis },
		"the nodes are heard by $hosts");
	return;
}

# A new broker has new connections, and doubts none.
sub begin
{
	$_->reform foreach @nodes;
	replace_broker($host);
	$host->poll_query_until('postgres', 'SELECT broker_pid IS NOT NULL FROM redlock_stats');
	wait_nodes_ready($host, 3);
	$_->cli(qw(CLIENT KILL TYPE pubsub)) foreach @redis;    # also the former broker's connection
	hears_nodes(1);
	return;
}

sub connected_since
{
	my ($since) = @_;
	return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND since > '$since'");
}

sub last_subscriber { return ($_[0]->cli(qw(CLIENT LIST TYPE pubsub)) =~ /^id=(\d+)/mg)[-1] // ''; }

sub clock { return $host->safe_psql('postgres', 'SELECT clock_timestamp()'); }

# ---- a request meets dead connections at all nodes ----

foreach my $call ("redlock_try('a', scope => 'session')",
	"redlock_acquire('a', scope => 'session') > 0",
	"redlock_acquire('a', wait => '0', scope => 'session') > 0")
{
	begin();
	drop_connections(2);
	my $began  = clock();
	my $result = $s->run("SELECT $call");
	is("$result->{out}$result->{err}", 't', "$call is granted");
	wait_until(sub { connected_since($began) == 3 }, 'all nodes were connected to anew');
	is($host->safe_psql('postgres', 'SELECT unreachable FROM redlock_stats'), 0, 'no request failed');
	wait_until(sub { key_count('redlock:a', @redis) == 3 }, 'the key is on all nodes');
	is($s->query("SELECT redlock_release('a')"), 't', 'it is released');
	wait_until(sub { key_count('redlock:a', @redis) == 0 }, 'at all nodes');
}

# ---- without a request the broker replaces dead connections ----

begin();
drop_connections(2);
my $dropped = clock();
wait_until(sub { connected_since($dropped) == 3 }, 'quiet connections that died are replaced');
is($s->query("SELECT redlock_try('b')"), 't', 'the first request finds them well');

# ---- messages ----

begin();
my $holder = session($host);
my $other = redlock_cluster('b', nodes => \@nodes, conf => "redlock.node_timeout = '6s'\nredlock.ttl = '60s'");
my $waiter = session($other);
my $listens = sub { scalar grep { $_->cli(qw(PUBSUB NUMSUB redlock:c)) =~ /\n1$/ } @redis };
$holder->query("SELECT redlock_acquire('c', scope => 'session')");
$waiter->send("SELECT redlock_acquire('c', scope => 'session') > 0");
wait_until(sub { $listens->() == 3 }, 'B waits for A, with a subscription at each node');
my @first = map { last_subscriber($_) } @redis;
hears_nodes(2);
drop_connections(4);
$_->cli(qw(CLIENT KILL TYPE pubsub)) foreach @redis;    # the node has already closed the connection
wait_until(sub { $listens->() == 3 }, 'B subscribes again at all nodes');
my @second = map { last_subscriber($_) } @redis;
isnt($second[$_], $first[$_], 'on a new connection') foreach 0 .. 2;
$holder->query("SELECT redlock_release('c')");
is($waiter->result->{out}, 't', 'and gets the lock when A gives it back');
$waiter->query("SELECT redlock_release('c')");

# ---- quiet connections cost little ----

# In a quiet time the server sends only checks, and entries for the lists of hosts
# (t/hosts_conflicts.t); no check fails.
$_->quit foreach $s, $holder, $waiter;
$other->stop;
my $looks = 0;
my $calls = sub {
	my $calls = -$looks++;    # each look is a call of INFO
	$calls += $_ foreach $redis[0]->cli(qw(INFO commandstats)) =~ /^cmdstat_(?:info|ping):calls=(\d+)/mg;
	return $calls;
};
my $errors = $host->safe_psql('postgres', 'SELECT max(last_error_at) FROM redlock_nodes');
my $before = $calls->();
my $began = time;
wait_until(sub { $calls->() >= $before + 4 }, 'connections are checked again and again');
cmp_ok(time - $began, '>', 5, 'not often');
is($host->safe_psql('postgres', 'SELECT max(last_error_at) FROM redlock_nodes'), $errors, 'without an error');

# ---- a clean stop ----

begin();
$s = session($host);
$s->query("SELECT redlock_acquire('d', scope => 'session')");
wait_until(sub { key_count('redlock:d', @redis) == 3 }, 'the key is on all nodes');
drop_connections(2);
$host->stop('fast');
is(key_count('redlock:d', @redis), 0, 'a clean stop releases by new connections what the dead ones have lost');
$s->quit;

done_testing();

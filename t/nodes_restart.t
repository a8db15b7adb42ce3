# Nodes restart, with and without their data, while sessions hold and request locks.
#
# Protects from (invariants 1 and 8): a node voting for new leases after forgetting old leases; a
# lock lost though a majority of nodes was up at all times; a token going back with lost counters;
# a quarantine of a node with all its data.  All the time another host tries to get the locks of
# living holders.
#
# t/nodes_quarantine.t tests the quarantine itself.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my ($host_a, $host_b, $on_a, $on_b);

# Each part begins with new nodes, and two hosts.
sub begin
{
	my ($nodes, $conf) = @_;

	if (!defined $host_a)
	{
		($host_a, $host_b) = map { redlock_cluster($_, nodes => $nodes, conf => $conf) } qw(a b);
	}
	else
	{
		restart_with($_, nodes => $nodes, conf => $conf) foreach $host_a, $host_b;
	}
	($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	return;
}

sub counters
{
	my ($name, @nodes) = @_;
	return map { $_->cli('EVAL', q{return redis.call('GET', KEYS[1] .. '\0token')}, 1, "redlock:$name") || 0 } @nodes;
}

# ---- all nodes restart without their data, one after another ----

{
	my @nodes = redis_nodes(5, persist => 0);
	begin(\@nodes, "redlock.ttl = '3s'\nredlock.max_ttl = '3s'");

	$host_a->safe_psql('postgres', 'CREATE TABLE work (n int)');
	$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	my $token = $on_a->query("BEGIN; INSERT INTO work VALUES (1); SELECT redlock_fence('job')");
	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
	my $owner = key_owner('redlock:job', @nodes);
	my ($granted, $asked) = (0, 0);
	foreach my $node (@nodes)
	{
		$node->restart;
		my $began = time;
		until ($node->cli('GET', 'redlock:job') =~ /^$owner/)
		{
			$granted++ if $on_b->run("SELECT redlock_try('job')")->{out} eq 't';
			$asked++;
			last if time > $began + 30;
		}
		my $took = time - $began;
		cmp_ok($took, '<', 30, 'a node that restarted empty has the key again');
		note "after $took s";
	}
	is($granted, 0, "nobody else got the lock meanwhile, asked for $asked times");
	is(key_owner('redlock:job', @nodes), $owner, 'all nodes know the same owner as before');
	is($on_a->query("SELECT redlock_token('job')"), $token, 'it has the same token');
	is_deeply([ map { $_ >= $token } counters('job', @nodes) ], [ (1) x 5 ], 'and all counters are where they were');
	is($on_a->query("SELECT redlock_check('job') > '0'"), 't', 'its lease is valid');
	is($on_a->run('COMMIT')->{state}, '', 'its transaction commits');
	is($host_a->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), 0, 'no lease was lost');
	is($on_a->query("SELECT redlock_release('job')"), 't', 'the session releases the lock');
	wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'no key is left, or created again', 2);
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	my $next = $on_b->query("SELECT redlock_acquire('job', scope => 'session')");
	cmp_ok($next, '>', $token, 'the next holder has a larger token, though no node is left that counted');
	$_->quit foreach $on_a, $on_b;
	$_->kill9 foreach @nodes;
}

# ---- keys come back at once: the next renewal is 20 s away ----

{
	my @nodes = redis_nodes(5);
	begin(\@nodes, "redlock.ttl = '60s'\nredlock.max_ttl = '60s'");

	my $renewed = $host_a->safe_psql('postgres', 'SELECT renewed FROM redlock_stats');
	my $token = $on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	my $began = time;
	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
	$nodes[$_]->restart(empty => 1) foreach 1, 2;
	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'two emptied nodes have the key again');
	cmp_ok(time - $began, '<', 18, 'at once');
	is(key_owner('redlock:job', @nodes), substr($nodes[0]->cli('GET', 'redlock:job'), 0, 32), 'of the same owner');
	my $counter = (counters('job', $nodes[0]))[0];
	is_deeply([ counters('job', @nodes) ], [ ($counter) x 5 ], 'and with the same counter');
	cmp_ok($nodes[1]->cli('PTTL', 'redlock:job'), '>', 30000, 'for as long as the others');
	is($host_a->safe_psql('postgres', 'SELECT renewed FROM redlock_stats'), $renewed, 'before any renewal');
	wait_quarantined($_, 'data was lost', @nodes[ 1, 2 ]) foreach $host_a, $host_b;
	is($on_a->query("SELECT redlock_release('job')"), 't', 'it is released');
	wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'there as well', 20);

	# ---- durable nodes are exempt ----

	my @durable = @nodes[ 0, 3, 4 ];
	my $held = $on_a->query("SELECT redlock_acquire('held', scope => 'session')");
	wait_until(sub { key_count('redlock:held', @durable) == 3 }, 'a lock is on three nodes that are not in quarantine');
	foreach my $node (@durable)
	{
		my $run_id = $node->cli('INFO', 'server') =~ /run_id:(\w+)/ ? $1 : '';
		my $value = $node->cli('GET', 'redlock:held');
		my $counter = (counters('held', $node))[0];
		$_->pause foreach grep { $_ != $node } @nodes;    # no host writes the counter again
		$on_a->run("SELECT redlock_try('seen')");         # the host notices the paused nodes
		$host_a->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_nodes WHERE state IN ('ready', 'quarantined')");
		kill 'STOP', my @brokers = map { broker_pid($_) } $host_a, $host_b;
		$node->restart;
		isnt($node->cli('INFO', 'server') =~ /run_id:(\w+)/ ? $1 : '', $run_id, 'a node that is always durable restarts');
		is(substr($node->cli('GET', 'redlock:held'), 0, 32), substr($value, 0, 32), 'with the key');
		is((counters('held', $node))[0], $counter, 'and the counter');
		kill 'CONT', @brokers;
		$_->resume foreach @nodes;
		$host_a->poll_query_until('postgres', "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'");
		is($host_a->safe_psql('postgres',
				"SELECT state, quarantine IS NULL, quarantined_for IS NULL FROM redlock_nodes WHERE node = '" . $node->address . "'"),
			'ready|t|t', 'the node is not quarantined');
	}
	is($on_b->query("SELECT redlock_try('held')"), 'f', 'the node still refuses a held lock');
	is($on_b->query("SELECT redlock_try('new')"), 't', 'and votes for new locks');
	is($on_a->query("SELECT redlock_token('held')"), $held, 'the holder has its token');
	is($on_a->query("SELECT redlock_release('held')"), 't', 'and releases it');
	$_->quit foreach $on_a, $on_b;
	$_->kill9 foreach @nodes;
}

# ---- a host that comes after the loss does not hide the loss from other hosts ----

# The later host has not seen the lost data, so a flushed node looks like a new node.
{
	my @nodes = redis_nodes(5);
	begin(\@nodes, "redlock.ttl = '60s'\nredlock.max_ttl = '60s'");
	my $host_c = redlock_cluster('c', nodes => \@nodes, conf => "redlock.ttl = '60s'");

	$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
	$_->cli('FLUSHALL') foreach @nodes[ 0 .. 2 ];
	$host_c->restart;
	wait_until(sub { $host_c->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state IN ('ready', 'quarantined')") == 5 },
		'another host connects to flushed nodes, for the first time');
	isnt($on_b->run("SELECT redlock_try('job')")->{out}, 't', 'a host that had known them does not get the lock by their vote');
	wait_quarantined($host_b, 'data was lost', @nodes[ 0 .. 2 ]);
	is($on_a->query("SELECT redlock_check('job') > '0'"), 't', 'it is held');
	$_->quit foreach $on_a, $on_b;
	$_->stop('immediate') foreach $host_a, $host_b, $host_c;
}

done_testing();

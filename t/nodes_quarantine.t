# A node that may have forgotten leases is in quarantine for as long as a lease could last: what
# the views show, what the node does, how the quarantine ends.
#
# Protects from (invariants 1 and 8): a node voting for new leases after forgetting old leases; a
# renewal counting soon after a loss, or not noticing a flush; a quarantine missing in the views,
# ending with the broker, or endless.  All the time another host tries to get the locks of living
# holders.
#
# The length of a quarantine is the subject, so times matter, and redlock.max_ttl is short.
#
# t/nodes_restart.t tests other restarts of nodes.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my ($host_a, $host_b);

# Columns of a node's row, by the host's broker.
sub node_is
{
	my ($host, $node, $columns) = @_;
	return $host->safe_psql('postgres',
		"SELECT $columns FROM redlock_nodes WHERE node = '" . $node->address . "'");
}

# The nodes that a message names.
sub named
{
	my ($text, @nodes) = @_;
	return join ' ', sort grep { $text =~ /\Q$_\E\b/ } map { $_->address } @nodes;
}

sub is_free_for
{
	my ($session, $name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { $session->run("SELECT redlock_try('$name')")->{out} eq 't' }, $description);
}

# ---- after a restart ----

{
	# three ways to forget by a restart, and a node that forgets nothing
	my @nodes = (
		redis_node(persist => 0),
		redis_node(conf => [ '--no-appendfsync-on-rewrite', 'yes' ]),
		redis_node(conf => [ '--appendfsync', 'everysec' ]),
		redis_node(), redis_node());
	my $max_ttl = 8;
	my $conf = "redlock.ttl = '2s'\nredlock.max_ttl = '${max_ttl}s'";
	# waits: the nodes are young, so nodes that may have forgotten begin in quarantine
	($host_a, $host_b) = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my @forget = @nodes[ 0 .. 2 ];

	# one node
	my $yes = node_is($host_a, $nodes[0], 'votes_yes');
	my $began = time;
	$nodes[0]->kill9;
	my $ended = time;    # no grant of the node comes later
	$nodes[0]->start;
	my $restarted = time;
	wait_quarantined($_, 'restarted at [-0-9]+ [:0-9]+ \S+', $nodes[0]) foreach $host_a, $host_b;
	# the text must stay right, as operators read the view at any time, and messages quote the text
	wait_until(sub { time > $restarted + 3 }, 'some time passes');
	my $near = "substring(%s FROM 'restarted at (.*) and may')::timestamptz BETWEEN"
	  . " to_timestamp($began) - interval '2 s' AND to_timestamp($restarted) + interval '2 s'";
	foreach my $column ('quarantine', 'last_error')
	{
		is(node_is($host_a, $nodes[0], sprintf $near, $column), 't', "$column tells when it restarted");
	}
	is( node_is($host_a, $nodes[0], "last_error_at BETWEEN to_timestamp($began) AND clock_timestamp()"),
		't', 'the view tells since when');
	is( node_is($host_a, $nodes[0], "quarantined_for BETWEEN '0' AND '" . ($max_ttl + 0.1) . " s'"),
		't', 'the view tells how long it will last');
	# a long ttl: a renewal would count as a vote, and go to the node in quarantine, too
	$on_a->query("BEGIN; SELECT redlock_acquire('one', ttl => '${max_ttl}s')");
	wait_until(sub { key_count('redlock:one', @nodes[ 1 .. 4 ]) == 4 }, 'four nodes vote');
	is(node_is($host_a, $nodes[0], 'votes_yes'), $yes, 'and not the one in quarantine')
	  if time < $restarted + $max_ttl - 1;
	is($on_b->query("SELECT redlock_try('one')"), 'f', 'they exclude others');
	$on_a->query('COMMIT');
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	cmp_ok(time - $ended, '>=', $max_ttl, 'the quarantine lasts as long as a lease could');
	cmp_ok(time - $restarted, '<', $max_ttl + 20, 'and not much longer');
	is(node_is($host_a, $nodes[0], 'quarantine IS NULL AND quarantined_for IS NULL'), 't', 'the view does not tell of it any more');
	is(node_is($host_a, $nodes[0], 'last_error IS NULL AND last_error_at IS NULL'), 't', 'also not as an error');

	# a past error: the view shows its time
	my $before = $host_a->safe_psql('postgres', 'SELECT clock_timestamp()');
	$nodes[4]->restart;
	$host_a->poll_query_until('postgres',
		"SELECT state = 'ready' AND since > '$before' FROM redlock_nodes WHERE node = '" . $nodes[4]->address . "'");
	is( node_is($host_a, $nodes[4], "last_error IS NOT NULL AND last_error_at BETWEEN '$before' AND since"),
		't', 'a node that came back has had its last error before');
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	$on_a->query("BEGIN; SELECT redlock_acquire('one')");
	wait_until(sub { key_count('redlock:one', @nodes) == 5 }, 'all five vote');
	$on_a->query('COMMIT');

	# three nodes at once
	my $token = $on_a->query("SELECT redlock_acquire('held', scope => 'session')");
	wait_until(sub { key_count('redlock:held', @nodes) == 5 }, 'a lock is held');
	$_->kill9 foreach @forget;
	my $down = time;    # the hosts may notice the first node before the last node has started
	$_->start foreach @forget;
	$restarted = time;
	wait_quarantined($_, 'restarted', @forget) foreach $host_a, $host_b;
	foreach my $sql ("SELECT redlock_try('new')", "SELECT redlock_acquire('new')")
	{
		$_->send($sql) foreach $on_a, $on_b;
		foreach my $session ($on_a, $on_b)
		{
			my $result = $session->result;
			is($result->{state}, '08006', 'three of five nodes in quarantine: no new lock');
			is(named($result->{detail}, @nodes), named($result->{detail}, @forget), 'the detail names no other node');
			is(named($result->{detail}, @nodes), join(' ', sort map { $_->address } @forget), 'but these');
			like($result->{detail}, qr/it restarted at [-0-9]+ [:0-9]+ \S+ and may have forgotten leases: its append\S+ is \S+ \(in quarantine for another \d+ s\)/,
				'and says why, and for how long');
		}
	}
	cmp_ok(time - $restarted, '<', $max_ttl, 'all that in time');
	is(key_count('redlock:new', @nodes), 0, 'and no node was even asked, or it was undone');

	# the broker is replaced meanwhile
	my %brokers = map { $_->name => broker_pid($_) } $host_a, $host_b;
	my $ends = $host_a->safe_psql('postgres', 'SELECT max(clock_timestamp() + quarantined_for) FROM redlock_nodes');
	kill 'TERM', values %brokers;
	foreach my $host ($host_a, $host_b)
	{
		wait_until(sub { broker_pid($host) =~ /^(?!$brokers{$host->name}$)\d+$/ },
			'the broker is replaced on ' . $host->name);
	}
	wait_nodes_ready($host_a, 2);
	wait_quarantined($_, 'restarted', @forget) foreach $host_a, $host_b;
	is( $host_a->safe_psql('postgres',
			"SELECT max(clock_timestamp() + quarantined_for) BETWEEN timestamptz '$ends' - interval '0.2 s'"
			  . " AND timestamptz '$ends' + interval '0.2 s' FROM redlock_nodes"),
		't', 'the quarantine ends when it would have ended');
	is($on_b->run("SELECT redlock_try('new')")->{state}, '08006', 'it is still in force');
	cmp_ok(time - $restarted, '<', $max_ttl, 'all that in time');

	# the held lock lives on
	until (time > $restarted + $max_ttl - 0.5)
	{
		fail('the other host got it') if $on_b->run("SELECT redlock_try('held')")->{out} eq 't';
		sleep 0.05;
	}
	is($on_a->query("SELECT redlock_check('held') > '0'"), 't', 'a lock that is held is renewed all the time');
	is($on_a->query("SELECT redlock_token('held')"), $token, 'with the same token');
	is(key_count('redlock:held', @nodes), 5, 'on all nodes');
	is_free_for($on_b, 'new', 'new locks are granted when the quarantine is over');
	cmp_ok(time - $down, '>=', $max_ttl - 0.1, 'and not before');
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	is($on_b->query("SELECT redlock_try('held')"), 'f', 'the one that is held is not');
	is($on_a->query("SELECT redlock_release('held')"), 't', 'until it is released');
	is_free_for($on_b, 'held', 'then the other host gets the released lock');

	# a server that starts while a node is young does not know the node, and is careful
	$nodes[1]->restart;
	$host_b->restart;
	wait_quarantined($host_b, 'restarted', $nodes[1]);
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;

	# this process is durable; the former process may have lost the writes of its last second
	$nodes[2]{conf} = [];
	$nodes[2]->restart;
	wait_quarantined($_, 'restarted .*: its former process was not durable', $nodes[2]) foreach $host_a, $host_b;
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;

	$_->quit foreach $on_a, $on_b;
	$_->kill9 foreach @nodes;
}

# ---- FLUSHALL, on nodes that are always durable ----

{
	my @nodes = redis_nodes(5);
	my $max_ttl = 4;
	restart_with($_, nodes => \@nodes, conf => "redlock.max_ttl = '${max_ttl}s'") foreach $host_a, $host_b;
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my @flushed = @nodes[ 1, 2, 3 ];
	my $token = $on_a->query("SELECT redlock_acquire('job', scope => 'session')");

	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the key is on all nodes');
	my $owner = key_owner('redlock:job', @nodes);
	$_->cli('FLUSHALL') foreach @flushed;
	my $flushed_at = time;
	my $result = $on_b->run("SELECT redlock_try('job')");
	isnt($result->{out}, 't', 'a majority was flushed: the other host does not get the lock');
	is($result->{state}, '08006', 'there is no quorum for it');
	like($result->{detail}, qr/\Q@{[$_->address]}\E: [^;]*(marker|data)[^;]* lost/, 'the detail says why: ' . $_->address)
	  foreach @flushed;
	# not even a free lock: these nodes cannot tell which locks are free
	is($on_b->run("SELECT redlock_try('free')")->{state}, '08006', 'nor a lock that is free');
	is($on_a->run("SELECT redlock_try('free')")->{state}, '08006', 'nor does the holder\'s host');
	wait_quarantined($_, 'data was lost', @flushed) foreach $host_a, $host_b;
	wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the keys come back');
	is(key_owner('redlock:job', @nodes), $owner, 'with the same owner');
	my ($granted, $asked) = (0, 0);
	while (time < $flushed_at + $max_ttl + 1)
	{
		$granted++ if $on_b->run("SELECT redlock_try('job')")->{out} eq 't';
		$asked++;
	}
	is($granted, 0, "the other host asked $asked times, and never got it");
	is($on_a->query("SELECT redlock_check('job') > '0'"), 't', 'the lease is valid');
	is($on_a->query("SELECT redlock_token('job')"), $token, 'with its token');
	is($on_a->query("SELECT redlock_fence('job')"), $token, 'also at the fence');
	is($on_a->query('SELECT lost FROM redlock_stats'), 0, 'no lease was lost');
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	is_free_for($on_b, 'free', 'they vote again when their quarantine is over');
	is($on_b->query("SELECT redlock_try('job')"), 'f', 'the lock is held as ever');
	is($on_a->query("SELECT redlock_release('job')"), 't', 'until it is released');
	is_free_for($on_b, 'job', 'then the other host gets the released lock');
	cmp_ok($on_b->query("BEGIN; SELECT redlock_acquire('job')"), '>', $token, 'with a larger token');
	$on_b->query('COMMIT');

	# a minority: a renewal notices the loss, and no session waits for the node
	$on_a->query("SELECT redlock_acquire('renewed', scope => 'session', ttl => '2 s')");
	wait_until(sub { key_count('redlock:renewed', @nodes) == 5 }, 'a lease on all nodes');
	$nodes[4]->cli('FLUSHALL');
	wait_quarantined($host_a, 'data was lost', $nodes[4]);
	is($on_a->query("SELECT redlock_release('renewed')"), 't', 'its renewal notices that one is flushed');
	is($on_a->query("SELECT redlock_try('other')"), 't', 'a flushed minority is in nobody\'s way');
	# a later host learns of the loss from the marker
	is($on_b->query("SELECT redlock_try('another')"), 't', 'on no host');
	wait_quarantined($host_b, 'data was lost', $nodes[4]);
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;

	# renewals at a flushed node count after the longest round of other hosts, here after the ttl
	$host_a->safe_psql('postgres', "ALTER SYSTEM SET redlock.node_timeout = '30s'");
	$host_a->reload;
	wait_until(sub { $on_a->query('SHOW redlock.node_timeout') eq '30s' }, 'a long node_timeout');
	$on_a->query("SELECT redlock_acquire('waits', scope => 'session', ttl => '2 s')");
	wait_until(sub { key_count('redlock:waits', @nodes) == 5 }, 'a lease on all nodes');
	$_->cli('FLUSHALL') foreach @flushed;
	wait_until(sub { $on_a->run("SELECT redlock_check('waits')")->{state} eq '40001' }, 'a majority is flushed: the lease is lost');
	wait_quarantined($host_a, 'data was lost', @flushed);

	# a look: the nodes answer after their quarantine, and may have executed the command before
	my $still = sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'quarantined'") == @flushed };
	foreach (1 .. 5)
	{
		$_->pause foreach @flushed;
		$on_a->send("SELECT state FROM redlock_holder('unseen')");
		wait_until(
			sub { $host_a->safe_psql('postgres', 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $on_a->pid) eq 'Extension' },
			'a session looks at a lock');
		last if $still->();
		$_->resume foreach @flushed;
		$on_a->result;
		$_->cli('FLUSHALL') foreach @flushed;
		wait_quarantined($host_a, 'data was lost', @flushed);
	}
	wait_nodes_ready($host_a, 5);
	$_->resume foreach @flushed;
	is($on_a->result->{out}, 'unknown', 'nodes that were in quarantine at the question do not tell that a lock is free');

	$_->quit foreach $on_a, $on_b;
}

done_testing();

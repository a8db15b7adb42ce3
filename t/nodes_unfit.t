# Nodes that answer, but cannot be trusted with locks, are named: once in the log, and in
# redlock_nodes while the fault lasts.
#
# Protects from: votes, or renewals that count, of nodes that evict locks when memory is short,
# found at the start or later (invariant 1); a full node without a message; a log filled by one
# node's trouble; a host that misses the messages of other hosts, and does not tell.

use strict;
use warnings;

use HostileNode;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

# Has the node ever granted the lock?  A program's argument can't contain NUL.
sub has_counted
{
	my ($node, $name) = @_;
	return $node->cli('EVAL', "return redis.call('EXISTS', 'redlock:$name\\0token')", 0);
}

# ---- nodes that forbid SUBSCRIBE ----

{
	my @nodes = redis_nodes(3);

	$_->cli(qw(ACL SETUSER default -subscribe)) foreach @nodes;
	my $host_a = redlock_cluster('deaf_a', nodes => \@nodes, conf => "redlock.ttl = '60s'");
	my $host_b = redlock_cluster('deaf_b', nodes => \@nodes);
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my $tries = sub { $nodes[0]->cli(qw(INFO commandstats)) =~ /cmdstat_subscribe:.*rejected_calls=(\d+)/ ? $1 : 0 };
	my $told = sub { scalar(() = slurp_file($host_b->logfile) =~ /@{[shift->address]} does not let us subscribe: NOPERM/g) };

	$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
	wait_until(sub { $tries->() >= 4 }, 'who waits tries to subscribe again and again');
	is($told->($_), 1, 'the log says once that it may not') foreach @nodes;

	# the right is granted, then revoked again
	$_->cli(qw(ACL SETUSER default +subscribe)) foreach @nodes;
	wait_until(sub { 3 == grep { $_->cli(qw(PUBSUB NUMSUB redlock:job)) =~ /\n1$/ } @nodes }, 'the waiting host subscribes once it has the right');
	$_->cli(qw(ACL SETUSER default -subscribe)), $_->cli(qw(CLIENT KILL TYPE pubsub)) foreach @nodes;
	my $before = $tries->();
	wait_until(sub { $tries->() >= $before + 4 }, 'until it may not again');
	is($told->($_), 2, 'the log says so once more') foreach @nodes;

	$on_a->query("SELECT redlock_release('job')");
	is($on_b->result->{out}, 't', 'it gets the lock by asking');
	$_->quit foreach $on_a, $on_b;
	$_->stop foreach $host_a, $host_b;
	$_->kill9 foreach @nodes;
}

# ---- nodes that forbid the channels of locks ----

{
	my @nodes = redis_nodes(3);

	$_->cli(qw(ACL SETUSER default resetchannels &redlock:?host:*)) foreach @nodes;
	my ($host_a, $host_b) = map { redlock_cluster("locks_$_", nodes => \@nodes, conf => "redlock.ttl = '60s'") } qw(a b);
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my $refusals = sub { $nodes[0]->cli(qw(INFO commandstats)) =~ /cmdstat_subscribe:.*rejected_calls=(\d+)/ ? $1 : 0 };

	$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
	wait_until(sub { $refusals->() >= 4 }, 'a waiter subscribes to the lock again and again');
	is(scalar(() = slurp_file($host_b->logfile) =~ /@{[$_->address]} does not let us subscribe: NOPERM/g), 1, '... and the log says once that it may not') foreach @nodes;
	$on_a->query("SELECT redlock_release('job')");
	is($on_b->result->{out}, 't', 'it gets the lock by asking');
	$_->quit foreach $on_a, $on_b;
	$_->stop foreach $host_a, $host_b;
	$_->kill9 foreach @nodes;
}

# ---- nodes without room for the connection of messages ----

{
	my @nodes = redis_nodes(3);
	my $host = redlock_cluster('no_room', nodes => \@nodes, conf => "redlock.ttl = '60s'");
	my %own = map { $_ => IO::Socket::INET->new('127.0.0.1:' . $_->port) } @nodes;
	my $ask = sub { my $own = $own{ $_[0] }; print $own "$_[1]\r\n"; $own->flush; return scalar <$own> };
	my $found = sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_diagnose() d WHERE d::text ~ 'does not let this host subscribe.*$_[0]'") };

	# the host's connection for commands, and that of the test
	foreach my $node (@nodes)
	{
		wait_until(sub { $ask->($node, 'CONFIG SET maxclients 2') =~ /^\+OK/ }, 'a node gets room for two clients');
		$ask->($node, 'CLIENT KILL TYPE pubsub');
	}
	wait_until(sub { $found->('Raise maxclients of the node, or close other connections to it\\.') == 3 }, 'redlock_diagnose names maxclients');
	is(scalar(() = slurp_file($host->logfile) =~ /@{[$_->address]} does not let us subscribe: ERR max number of clients reached\n.*\n.*HINT:  Raise maxclients/g), 1, 'so does the log, once') foreach @nodes;
	is(psql_result($host, "SELECT redlock_try('job')")->{out}, 't', 'the nodes vote');
	$ask->($_, 'CONFIG SET maxclients 100') foreach @nodes;
	wait_until(sub { $found->('') == 0 }, 'when there is room the host subscribes');
	$host->stop;
	$_->kill9 foreach @nodes;
}

# ---- nodes that evict keys ----

{
	# the last two nodes: no limit, and a hidden limit
	my @redis = (
		(map { redis_node() } 0 .. 2),
		redis_node(conf => [qw(--maxmemory-policy volatile-ttl)]),
		redis_node(conf => [qw(--maxmemory 100mb --maxmemory-policy volatile-ttl)]));
	my $secret = HostileNode->new($redis[4]);
	my @nodes = (@redis[ 0 .. 3 ], $secret);
	$secret->obey([ '^INFO memory', 'edit', 'maxmemory', 'my_memory' ]);
	$redis[0]->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy volatile-ttl));
	my $host = redlock_cluster('evicts', nodes => \@nodes, conf => "redlock.ttl = '2s'\nredlock.max_ttl = '2s'", ready => 4);
	my $broker = broker_pid($host);
	my $s = session($host);
	my $reason = 'its maxmemory-policy, \S+, may throw away leases';
	my $evicts = sub {
		my ($node) = @_;
		return $host->safe_psql('postgres',
			"SELECT count(*) FROM redlock_nodes WHERE node = '@{[$node->address]}' AND state = 'quarantined'"
			  . " AND quarantine ~ '$reason' AND last_error = quarantine AND quarantined_for IS NULL") == 1;
	};

	# from the start
	ok($evicts->($redis[0]), 'a node that evicts keys does not vote');
	is($s->query("SELECT redlock_try('a')"), 't', 'other nodes vote, also nodes without a limit, or with a hidden limit');
	is(join(',', map { has_counted($_, 'a') } @redis), '0,1,1,1,1', 'the evicting node was not asked');

	# during work, by another policy
	my $holder = session($host);
	my $token = $holder->query("SELECT redlock_acquire('held', scope => 'session')");
	$redis[1]->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru));
	wait_until(sub { $evicts->($redis[1]) }, 'a second node begins to');
	my $renewed = $s->query('SELECT renewed FROM redlock_stats');
	ok($host->poll_query_until('postgres', "SELECT renewed >= $renewed + 5 FROM redlock_stats"), 'a lock that is held is renewed');
	is($holder->query("SELECT redlock_check('held') > '0'"), 't', 'and lives');
	is($holder->query("SELECT redlock_token('held')"), $token, 'as the same lease');
	$redis[2]->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru));
	wait_until(sub { $evicts->($redis[1]) && $evicts->($redis[2]) }, 'and a third');
	foreach my $sql ("SELECT redlock_try('b')", "SELECT redlock_acquire('b')")
	{
		my $result = $s->run($sql);
		is($result->{state}, '08006', 'there is no quorum for new locks');
		like($result->{detail}, qr/\Q@{[$_->address]}\E: $reason \(in quarantine until that is changed\)/, 'the detail says why')
		  foreach @redis[ 0 .. 2 ];
		like($result->{hint}, qr/^Set maxmemory-policy to noeviction on the node; the node votes again after redlock\.max_ttl\. See the view redlock_nodes, or call redlock_diagnose\(\)\.$/,
			'and the hint what to do');
	}
	wait_until(sub { $holder->run("SELECT redlock_check('held')")->{state} ne '' }, 'renewals do not count where any key may be gone: the lock is lost');
	ok($evicts->($_), 'a quarantine goes on as long as its reason') foreach @redis[ 0 .. 2 ];
	is(scalar(() = slurp_file($host->logfile) =~ /@{[$_->address]} does not vote for new locks: $reason\n.*HINT:  Set maxmemory-policy to noeviction/g),
		1, 'the log says once what to do')
	  foreach @redis[ 0 .. 2 ];

	# an administrator corrects the policy, or the limit
	$_->cli(qw(CONFIG SET maxmemory-policy noeviction)) foreach @redis[ 0, 1 ];
	$redis[2]->cli(qw(CONFIG SET maxmemory 0));    # the policy stays
	my %ends;    # the host checks the nodes at different times
	wait_until(
		sub {
			$ends{$_} = 1 foreach split /\n/, $host->safe_psql('postgres', "SELECT node FROM redlock_nodes WHERE quarantined_for > '0'");
			return keys %ends == 3;
		},
		'when that is mended the quarantine has an end');
	wait_nodes_ready($host, 5);
	is($s->query("SELECT redlock_try('b')"), 't', 'then they vote');
	is(broker_pid($host), $broker, 'without another broker');
	is($s->query("SELECT redlock_try('held', scope => 'session')"), 't', 'also for the lock that was lost');
	$_->pause foreach @redis[ 3, 4 ];
	$renewed = $s->query('SELECT renewed FROM redlock_stats');
	ok($host->poll_query_until('postgres', "SELECT renewed >= $renewed + 3 FROM redlock_stats"), 'and their renewals count');
	is($s->query("SELECT redlock_check('held') > '0'"), 't', 'without the other nodes');
	$_->resume foreach @redis[ 3, 4 ];
	$_->quit foreach $s, $holder;
	$host->stop;
	$_->kill9 foreach @redis;
}

# ---- an error says nothing about the memory ----

{
	my @redis = map { redis_node() } 0 .. 2;
	my @nodes = map { HostileNode->new($_) } @redis;
	my $host = redlock_cluster('busy', nodes => \@nodes, conf => "redlock.ttl = '10s'\nredlock.max_ttl = '10s'");
	my $holder = session($host);
	my $evict = "SELECT count(*) FROM redlock_nodes WHERE state = 'quarantined' AND quarantined_for IS NULL";
	$holder->query("SELECT redlock_acquire('held', scope => 'session')");
	$_->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru)) foreach @redis;
	wait_until(sub { $host->safe_psql('postgres', $evict) == 3 }, 'all nodes evict keys');
	$_->obey([ '^INFO memory', 'say', '-BUSY a script runs\r\n' ]) foreach @nodes;
	wait_until(sub { $holder->run("SELECT redlock_check('held')")->{state} ne '' }, 'after an error, renewals do not count either');
	is($host->safe_psql('postgres', $evict), 3, 'nor does the quarantine end');
	$holder->quit;
	$host->stop;
	$_->kill9 foreach @redis;
}

# ---- nodes that turn out to evict keys after a request was sent ----

{
	my @nodes = redis_nodes(3);
	# the nodes pause for less than a quarter of node_timeout, after which the broker would doubt a
	# connection
	my $host = redlock_cluster('late', nodes => \@nodes,
		conf => "redlock.ttl = '180s'\nredlock.max_ttl = '180s'\nredlock.node_timeout = '57s'");
	my $broker = broker_pid($host);
	my $s = session($host);
	# seconds since the last check; the broker checks when the host's clock is a multiple of 5 s
	my $phase = sub { my ($up) = split ' ', slurp_file('/proc/uptime'); return $up - 5 * int($up / 5); };

	# the answer to the check comes first, then the error about the missing script
	wait_until(sub { $phase->() > 1 && $phase->() < 2.5 }, 'the nodes have been checked');
	$_->cli(qw(SCRIPT FLUSH)), $_->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru)) foreach @nodes;
	$_->pause foreach @nodes;
	wait_until(sub { $phase->() < 1 }, 'it is time for the next check');
	wait_until(sub { $phase->() > 1 }, 'which has been sent');
	$s->send("SELECT redlock_try('asked')");
	wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'") eq '1' }, 'a lock is asked for');
	$_->resume foreach @nodes;
	is($s->result->{state}, '08006', 'they are not asked again, with the script');
	ok(!has_counted($_, 'asked'), 'and did not vote') foreach @nodes;
	is(broker_pid($host), $broker, 'the broker goes on');
	$s->quit;
	$host->stop;
	$_->kill9 foreach @nodes;
}

# ---- nodes that are full, and evict nothing ----

{
	my @nodes = redis_nodes(3);
	my $host = redlock_cluster('full', nodes => \@nodes, conf => "redlock.ttl = '60s'");
	my $s = session($host);

	$s->query("SELECT redlock_acquire('held', scope => 'session')");
	$_->cli(qw(CONFIG SET maxmemory 1)) foreach @nodes;
	my $result = $s->run("SELECT redlock_try('new')");
	is($result->{state}, '08006', 'they don\'t grant');
	cmp_ok(scalar(() = $result->{detail} =~ /127.0.0.1:\d+: OOM [^;]*'maxmemory'/g), '>=', 2, 'the detail says why');

	# a release goes out with a refused request, in one call of the script
	my $in_one_call = sub { return scalar grep { /redlock:new\b/ && /redlock:other\b/ } split /evalsha/i, $_[0]->cli(qw(SLOWLOG GET 128)); };
	my $other = session($host);
	my $broker = broker_pid($host);
	$_->cli(qw(CONFIG SET maxmemory 0)) foreach @nodes;
	$other->query("SELECT redlock_acquire('other', scope => 'session')");
	wait_until(sub { key_count('redlock:other', @nodes) == 3 }, 'another lock is held');
	$_->cli(qw(CONFIG SET maxmemory 1)) foreach @nodes;
	$_->cli(qw(CONFIG SET slowlog-log-slower-than 0)) foreach @nodes;
	kill 'STOP', $broker;
	$s->send("SELECT redlock_try('new')");
	wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'") eq '1' }, 'a new one is asked for');
	is($other->query("SELECT redlock_release('other')"), 't', 'another lock is released');
	kill 'CONT', $broker;
	is($s->result->{state}, '08006', 'the new one is refused');
	wait_until(sub { key_count('redlock:other', @nodes) == 0 }, 'the other one is released at all nodes', 20);
	cmp_ok(scalar(grep { $in_one_call->($_) == 1 } @nodes), '>=', 2, 'by that call');
	$_->cli(qw(CONFIG SET slowlog-log-slower-than 10000)) foreach @nodes;
	$other->quit;

	# a new connection renews, and a later release writes the counter, too
	$_->cli('PEXPIRE', 'redlock:held', 50000) foreach @nodes;
	$_->cli(qw(CLIENT KILL TYPE normal)) foreach @nodes;
	wait_until(sub { 3 == grep { $_->cli('PTTL', 'redlock:held') > 50000 } @nodes }, 'what is held is renewed');
	is($s->query("SELECT redlock_release('held')"), 't', 'and released');
	wait_until(sub { key_count('redlock:held', @nodes) == 0 }, 'at all nodes', 20);
	$_->cli(qw(CONFIG SET maxmemory 0)) foreach @nodes;
	is($s->query("SELECT redlock_try('new')"), 't', 'nodes with room grant again');
	$s->quit;
	$host->stop;
}

done_testing();

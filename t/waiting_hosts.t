# Two hosts wait for each other: wake-ups, turns, and losses to avoid.
#
# Protects from: a waiter sleeping while the lock is free; a needless subscription, or a
# subscription for each session; a host whose sessions never get their turn; a hand-over to an
# ending session, after which no session gets the lock; a job running twice because its lock was
# free too soon.
#
# Unless a case says otherwise, the ttl is longer than any wait here: a lock becomes free in time by
# a release, not by expiry.

use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $on_a = session($host_a);
my $on_b = session($host_b);

sub stat_of
{
	my ($host, $counter) = @_;
	return $host->safe_psql('postgres', "SELECT $counter FROM redlock_stats");
}

# Number of subscribers of the key's channel, on each node.
sub subscribers
{
	my ($key) = @_;
	return map { (split /\n/, $_->cli('PUBSUB', 'NUMSUB', $key))[1] // 0 } @nodes;
}

# Number of calls of a command, on all nodes.
sub calls_of
{
	my ($command) = @_;
	my $calls = 0;

	$calls += $_->cli('INFO', 'commandstats') =~ /^cmdstat_$command:calls=(\d+)/m ? $1 : 0 foreach @nodes;
	return $calls;
}

sub all_subscribers_are
{
	my ($key, $number) = @_;
	return !grep { $_ != $number } subscribers($key);
}

# Waits until the waiting hosts have joined the key's channel.  From then on each waiting host asks
# the nodes only twice a second.
sub wait_subscribed
{
	my ($key, $number) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { all_subscribers_are($key, $number) }, "$number waits on $key, on all nodes");
}

sub queued
{
	my ($host, $name, $number) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok( $host->poll_query_until(
			'postgres',
			"SELECT count(*) = $number FROM redlock_locks WHERE resource = '$name' AND state = 'queued'"
		),
		"$number sessions are queued behind another of their host");
}

# ---- a release wakes the waiter of another host ----

{
	my $rounds = 10;
	my $before = stat_of($host_b, 'woken');
	my $woken = 0;
	my @gaps;

	# a round in which a retry of B meets the release of A shows nothing; such rounds are few
	while ($woken < $rounds && @gaps < 2 * $rounds)
	{
		$on_a->query("SELECT redlock_acquire('wake', scope => 'session')");
		$on_b->send("SELECT redlock_acquire('wake', scope => 'session') > 0, extract(epoch FROM clock_timestamp())");
		$host_b->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'wake' AND state = 'waiting' AND held_by IS NOT NULL"
		);
		my $end = time + 60;
		sleep 0.01 until all_subscribers_are('redlock:wake', 1) || time > $end;
		# B asks again when the nodes confirm the channel; a lock free by then needs no wake-up
		for (my $seen = -1; $seen != calls_of('evalsha') && time < $end; sleep 0.02) { $seen = calls_of('evalsha') }
		my $released = $on_a->query("SELECT redlock_release('wake'), extract(epoch FROM clock_timestamp())");
		my ($got, $at) = split /\|/, $on_b->result->{out};
		push @gaps, $at - (split /\|/, $released)[1];
		is($got, 't', 'B gets the lock after the release on A') if $got ne 't' || @gaps == 1;
		$on_b->query("SELECT redlock_release('wake')");
		$woken = stat_of($host_b, 'woken') - $before;
	}
	wait_until(sub { key_count('redlock:wake', @nodes) == 0 }, 'and gives it back', 30);
	note 'from release to grant, in ms: ' . join ' ', map { sprintf '%.1f', $_ * 1000 } @gaps;
	cmp_ok($woken, '>=', $rounds, 'B was woken each time');

	# Without wake-ups most gaps would be 250 ms or more.
	@gaps = sort { $a <=> $b } @gaps;
	cmp_ok($gaps[ @gaps / 2 ], '<', 0.2, 'the median wait is shorter than the retry would be');
	wait_until(sub { all_subscribers_are('redlock:wake', 0) }, 'no host without a waiter listens');
}

# ---- one subscription for a host, while a session waits ----

{
	my @waiters;

	$on_a->query("SELECT redlock_acquire('many', scope => 'session')");
	is_deeply([ subscribers('redlock:many') ], [ (0) x 5 ], 'nobody waits: no subscription');
	foreach my $queued (0 .. 19) # in the order of the loop below
	{
		push @waiters, session($host_b);
		$waiters[-1]->send("SELECT redlock_acquire('many', scope => 'session') > 0");
		$host_b->poll_query_until('postgres',
			"SELECT count(*) = $queued + 1 FROM redlock_locks WHERE resource = 'many' AND state IN ('queued', 'waiting')");
	}
	queued($host_b, 'many', 19);
	wait_subscribed('redlock:many', 1);
	$on_a->query("SELECT redlock_release('many')");
	foreach my $waiter (@waiters)
	{
		my $result = $waiter->result;
		fail("a waiter failed: $result->{err}") if $result->{out} ne 't';
		$waiter->quit;
	}
	pass('20 sessions of B got it, one after the other');
	wait_until(sub { all_subscribers_are('redlock:many', 0) }, 'then the subscription is gone');

	# a wait that ends in vain
	$on_a->query("SELECT redlock_acquire('many', scope => 'session')");
	is($on_b->run("SELECT redlock_acquire('many', wait => '200 ms')")->{state}, '55P03', 'a wait times out');
	wait_until(sub { all_subscribers_are('redlock:many', 0) }, 'its subscription is gone, too');
	$on_b->send("SELECT redlock_acquire('many')");
	wait_subscribed('redlock:many', 1);
	$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $on_b->pid . ')');
	is($on_b->result->{state}, '57014', 'a wait is cancelled');
	wait_until(sub { all_subscribers_are('redlock:many', 0) }, 'its subscription is gone, too');
	is($on_b->query("SELECT redlock_try('many')"), 'f', 'a try does not wait');
	is_deeply([ subscribers('redlock:many') ], [ (0) x 5 ], 'and does not subscribe');
	$on_a->query("SELECT redlock_release('many')");
}

# ---- the subscriber's connection breaks ----

{
	$on_a->query("SELECT redlock_acquire('broken', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('broken', scope => 'session') > 0");
	wait_subscribed('redlock:broken', 1);
	foreach my $round (1 .. 3)
	{
		# on a majority of the nodes: without a majority B hears no release
		cmp_ok($_->cli('CLIENT', 'KILL', 'TYPE', 'pubsub'), '>=', 1, 'a subscription is cut')
		  foreach @nodes[ 0 .. $round + 1 ];
		wait_subscribed('redlock:broken', 1);
		ok(!$on_b->done, 'B waits on');
	}
	my $before = stat_of($host_b, 'woken');
	$on_a->query("SELECT redlock_release('broken')");
	is($on_b->result->{out}, 't', 'B gets the lock');
	is(stat_of($host_b, 'woken'), $before + 1, 'and was woken by the release');
	$on_b->query("SELECT redlock_release('broken')");

	# A releases while B is subscribed at no node
	$on_a->query("SELECT redlock_acquire('broken', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('broken', scope => 'session') > 0");
	wait_subscribed('redlock:broken', 1);
	$_->cli('CLIENT', 'KILL', 'TYPE', 'pubsub') foreach @nodes;
	$on_a->query("SELECT redlock_release('broken')");
	is($on_b->result->{out}, 't', 'B gets a lock whose release it may have missed');
	$on_b->query("SELECT redlock_release('broken')");
}

# ---- a request is cancelled before the nodes have answered ----

{
	my $lines = IPC::Run::start([ 'redis-cli', '-p', $nodes[0]->port, 'SUBSCRIBE', 'redlock:early' ], '>', \my $heard);

	$host_a->safe_psql('postgres', "ALTER SYSTEM SET redlock.node_timeout = '20s'");
	$host_a->reload;
	wait_until(sub { $on_a->query('SHOW redlock.node_timeout') eq '20s' }, 'A has patience with its nodes');
	wait_until(sub { $lines->pump_nb; ($heard // '') =~ /subscribe/ }, 'redis-cli listens to the channel of the lock');
	$_->pause foreach @nodes[ 1 .. 4 ];
	$on_a->send("SELECT redlock_acquire('early')");
	wait_until(sub { $nodes[0]->cli('EXISTS', 'redlock:early') == 1 }, 'a node has the key, the others do not answer');
	$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $on_a->pid . ')');
	is($on_a->result->{state}, '57014', 'the request is cancelled');
	wait_until(sub { $lines->pump_nb; $heard =~ /free/ }, 'the nodes publish that the key of the cancelled request is gone');
	is($nodes[0]->cli('EXISTS', 'redlock:early'), 0, 'it is');
	$_->resume foreach @nodes[ 1 .. 4 ];
	$lines->kill_kill;
	$host_a->safe_psql('postgres', 'ALTER SYSTEM RESET redlock.node_timeout');
	$host_a->reload;
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
}

# ---- a lock kept after its release has no holder ----

{
	my $ask = sub { $on_b->run("SELECT redlock_acquire('kept', wait => '300 ms')") };
	my $holder = 'cluster="a" host="\S+" database="postgres" pid=' . $on_a->pid . ' user="\S+"';

	$on_a->query("SELECT redlock_acquire('kept', scope => 'session', hold_at_least => '100 s')");
	my $result = $ask->();
	is($result->{state}, '55P03', 'a lock is held');
	like($result->{detail}, qr/^The lock was granted to: $holder\.$/, 'by a session');
	like($result->{hint}, qr/another session there may hold the lock by now/, 'or another of that server');
	$on_a->query("SELECT redlock_release('kept')");
	wait_until(sub { !grep { $_->cli('GET', 'redlock:kept') !~ /^\w{32}:\d{9}:\w{16} kept $holder$/ } @nodes },
		'the lock is released, and the keys say so');
	$result = $ask->();
	is($result->{state}, '55P03', 'no session gets the lock before hold_at_least is over');
	like($result->{detail}, qr/^The lock was granted to: $holder \(released; kept until .*\)\.$/,
		'the detail names the last holder and the end of hold_at_least');
	my ($until) = $result->{detail} =~ /kept until (.*)\)/;
	is($on_b->query("SELECT timestamptz '$until' - now() BETWEEN '1 s' AND '100 s'"), 't', 'and for how long it is kept');
	$on_b->send("SELECT redlock_acquire('kept', scope => 'session') > 0");
	ok( $host_b->poll_query_until(
			'postgres', "SELECT held_by ~ 'kept until' FROM redlock_locks WHERE resource = 'kept'"),
		'the view says the same');
	$_->cli('DEL', 'redlock:kept') foreach @nodes;
	is($on_b->result->{out}, 't', 'the waiter asks again');
	$on_b->query("SELECT redlock_release('kept')");
}

# ---- plain Redlock clients never publish ----

{
	$_->cli('SET', 'redlock:plain', 'somebody else', 'NX', 'PX', '600000') foreach @nodes;
	$on_b->send("SELECT redlock_acquire('plain', scope => 'session') > 0");
	wait_subscribed('redlock:plain', 1);
	ok(!$on_b->done, 'B waits for a plain client');
	my $before = stat_of($host_b, 'woken');
	$_->cli('DEL', 'redlock:plain') foreach @nodes;
	is($on_b->result->{out}, 't', 'B gets the lock after its DEL');
	is(stat_of($host_b, 'woken'), $before, 'no message told B of the DEL');
	$on_b->query("SELECT redlock_release('plain')");

	# A plain client that takes the lock again and again must not get the lock each time: B's broker
	# must not wait for a message.
	my @connections = map { IO::Socket::INET->new('127.0.0.1:' . $_->port) // die $! } @nodes;
	my $call = sub {
		my $request = '*' . @_ . "\r\n" . join('', map { '$' . length($_) . "\r\n$_\r\n" } @_);
		$_->syswrite($request) foreach @connections;
		return scalar grep { $_->getline =~ /^(\+OK|:1)/ } @connections;
	};
	my $rounds = 150;
	my $grants = stat_of($host_b, 'granted');
	repeat($on_b, <<'SQL');
		PERFORM redlock_acquire('shared', scope => 'session');
		PERFORM redlock_release('shared');
		PERFORM pg_sleep(0.01)
SQL
	for (my $taken = 0; $taken < $rounds;)
	{
		my $yes = $call->('SET', 'redlock:shared', 'plain client', 'NX', 'PX', '60000');
		sleep 0.01 if $yes > 2;
		$call->('EVAL', q{return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0},
			1, 'redlock:shared', 'plain client');
		$taken++ if $yes > 2;
		sleep 0.01;
	}
	$grants = stat_of($host_b, 'granted') - $grants;
	note "$grants grants, and $rounds of the plain client";
	cmp_ok($grants, '>=', $rounds / 10, 'a plain client that takes the lock all the time leaves it to others, too');
	end_repeats($host_b);
	is($on_b->result->{err}, '', 'nobody failed');

	my $set = time;
	$_->cli('SET', 'redlock:expiry', 'somebody else', 'NX', 'PX', '1500') foreach @nodes;
	$on_b->send("SELECT redlock_acquire('expiry', scope => 'session') > 0");
	is($on_b->result->{out}, 't', 'B gets the lock when the key of a plain client has expired');
	cmp_ok(time - $set, '>=', 1.4, 'and not before');
	$on_b->query("SELECT redlock_release('expiry')");
}

# ---- hand-over keeps the key; its limit is heeded ----

sub hand_over_once
{
	my ($name) = @_;
	my $a2 = session($host_a);
	my $before = stat_of($host_a, 'handed_over');

	$on_a->query("SELECT redlock_acquire('$name', scope => 'session')");
	wait_until(sub { key_count("redlock:$name", @nodes) == 5 }, 'the key is on all nodes');
	my $value = $nodes[0]->cli('GET', "redlock:$name");
	$a2->send("SELECT redlock_acquire('$name', scope => 'session') > 0");
	queued($host_a, $name, 1);
	$on_a->query("SELECT redlock_release('$name')");
	is($a2->result->{out}, 't', 'the next session of A has the lock');
	is($on_b->query("SELECT redlock_try('$name')"), 'f', 'B can not have it');
	my $same = $nodes[0]->cli('GET', "redlock:$name") eq $value;
	my $handed_over = stat_of($host_a, 'handed_over') - $before;
	$a2->query("SELECT redlock_release('$name')");
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 }, 'no key is left in the end', 30);
	$a2->quit;
	return ($same, $handed_over);
}

sub set_handover_limit
{
	my ($limit) = @_;

	$host_a->append_conf('postgresql.conf', "redlock.handover_limit = $limit");
	$host_a->reload;
	$host_a->poll_query_until('postgres',
		"SELECT current_setting('redlock.handover_limit') = '$limit'");
	# a session reads the setting before its next statement
	$on_a->query('SELECT 1');
}

is_deeply([ hand_over_once('handed') ], [ 1, 1 ], 'a hand-over keeps the key, and is counted');
set_handover_limit(0);
is_deeply([ hand_over_once('unlimited') ], [ '', 0 ], 'with a limit of 0 there is none');

sub pgbench
{
	my ($host, $script, @options) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir_short() . '/script.sql';
	my %run = (out => '');

	local $ENV{PGAPPNAME} = 'pgbench';
	PostgreSQL::Test::Utils::append_to_file($file, $script);
	$run{harness} = IPC::Run::start(
		[
			$host->installed_command('pgbench'), '-n', '-f', $file, @options,
			'-h', $host->host, '-p', $host->port, 'postgres'
		],
		'<', \undef, '>', \$run{out}, '2>', '/dev/null',
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return \%run;
}

# ---- fairness ----

{
	set_handover_limit(1000);
	foreach my $host ($host_a, $host_b)
	{
		$host->safe_psql('postgres', 'CREATE TABLE grants (token bigint)');
	}
	# a turn is a tenth of the ttl
	my $script = <<'SQL';
BEGIN;
INSERT INTO grants SELECT redlock_acquire('fair', ttl => '1 s');
COMMIT;
SQL
	my @runs = map { pgbench($_, $script, '-c', 4, '-T', 6) } $host_a, $host_b;
	$_->{harness}->finish foreach @runs;
	my ($of_a, $of_b) = map { $_->safe_psql('postgres', 'SELECT count(*) FROM grants') } $host_a, $host_b;
	note "grants: A $of_a, B $of_b";
	cmp_ok($of_a, '>', 0.2 * ($of_a + $of_b), 'of two hosts that contend, A gets its share');
	cmp_ok($of_b, '>', 0.2 * ($of_a + $of_b), 'and B');
	cmp_ok(stat_of($host_a, 'handed_over'), '>', 10, 'A handed over');
	is( $_->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT token) FROM grants'),
		0, 'no token was used twice') foreach $host_a, $host_b;
}

# ---- waiters that are killed during hand-overs ----

{
	my $script = <<'SQL';
SELECT redlock_acquire('killed', ttl => '60 s', scope => 'session');
SELECT redlock_release('killed');
SQL
	my $killed = 0;
	my $slowest = 0;

	foreach my $round (1 .. 12)
	{
		my $run = pgbench($host_a, $script, '-c', 6, '-T', 60);
		my $kill = $round % 2 ? 'pg_terminate_backend' : 'pg_cancel_backend';

		# one session after another, until all are gone
		$host_a->poll_query_until('postgres',
			"SELECT count(*) > 2 FROM redlock_locks WHERE resource = 'killed' AND state = 'queued'");
		for (my $end = time + 60; time < $end;)
		{
			my $left = $host_a->safe_psql('postgres',
				"SELECT count(*), count($kill(pid)) FROM (SELECT pid FROM redlock_locks"
				  . " WHERE resource = 'killed' AND state = 'queued' ORDER BY random() LIMIT 1) w");
			$killed += (split /\|/, $left)[1];
			last unless $host_a->safe_psql('postgres',
				"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'")
			  > 1;
			sleep rand 0.02;
		}
		# the last session, in any state
		$host_a->safe_psql('postgres',
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
		eval { $run->{harness}->finish };
		my $began = time;
		my $result = $on_b->run("SELECT redlock_acquire('killed', wait => '15 s', ttl => '60 s', scope => 'session') > 0");
		my $took = time - $began;
		$slowest = $took if $took > $slowest;
		if ($result->{out} ne 't')
		{
			fail("round $round: B does not get the lock that all of A have left: $result->{err}");
			diag($host_a->safe_psql('postgres', 'SELECT * FROM redlock_locks'));
			last;
		}
		$on_b->query("SELECT redlock_release('killed')");
	}
	cmp_ok($killed, '>', 12, "waiters were killed: $killed");
	cmp_ok($slowest, '<', 10, "the lock was never left idle (slowest: $slowest s)");
	is( $host_a->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'"),
		0, 'and no place in the queue is left');
}

# A waiter is terminated, or cancelled, just after the release has left the lease to the waiter.
# By itself the broker would look at the lease at the next renewal, in 20 minutes.
{
	$_->append_conf('postgresql.conf', "redlock.max_ttl = '1 h'") foreach $host_a, $host_b;
	$_->reload foreach $host_a, $host_b;
	# a host refuses locks until the host has read the other host's new setting
	foreach my $host ($host_a, $host_b)
	{
		wait_until(sub { psql_result($host, "SELECT redlock_try('settings', ttl => '1 h')")->{out} eq 't' }, 'both have the setting');
	}
	foreach my $wait ('', ", wait => '10 min'")
	{
		foreach my $signal ('TERM', 'INT')
		{
			my ($holder, $waiter) = map { session($host_a) } 1 .. 2;
			my $handed_over = stat_of($host_a, 'handed_over');

			$holder->query("SELECT redlock_acquire('given', ttl => '1 h', scope => 'session')");
			$waiter->send("SELECT redlock_acquire('given', ttl => '1 h', scope => 'session'$wait)");
			queued($host_a, 'given', 1);
			kill 'STOP', $waiter->pid;
			$holder->query("SELECT redlock_release('given')");
			wait_until(sub { key_count('redlock:given', @nodes) == 5 }, 'a lease is left for a waiter');
			kill $signal, $waiter->pid;
			kill 'CONT', $waiter->pid;
			my $result = $waiter->result;
			ok($result->{dead}, 'which is terminated') if $signal eq 'TERM';
			is($result->{state}, '57014', 'which is cancelled') if $signal eq 'INT';
			wait_until(sub { key_count('redlock:given', @nodes) == 0 }, 'and does not leave it idle');
			is(stat_of($host_a, 'handed_over'), $handed_over, 'nor had it');
			$_->quit foreach $holder, $waiter;
		}
	}
}

# ---- a refused round tells nobody ----

# Woken waiters would ask in vain, and their rounds would wake more waiters.
{
	$_->cli('SET', 'redlock:undone', 'somebody', 'PX', 600000) foreach @nodes[ 0 .. 2 ];
	my $before = calls_of('publish');
	is($on_a->query("SELECT redlock_try('undone')"), 'f', 'a try is refused');
	ok( $host_a->poll_query_until('postgres', "SELECT count(*) = 0 FROM redlock_locks WHERE resource = 'undone'"),
		'its keys are deleted');
	is(calls_of('publish'), $before, 'and nobody is told');
	$_->cli('DEL', 'redlock:undone') foreach @nodes;
	is($on_a->query("SELECT redlock_try('undone', scope => 'session') AND redlock_release('undone')"), 't', 'a lock is released');
	wait_until(sub { calls_of('publish') == $before + 5 }, 'which each node tells');
}

# ---- hold_at_least ----

{
	my $began = time;
	$on_a->query("SELECT redlock_acquire('least', ttl => '1 s', scope => 'session', hold_at_least => '3 s')");
	my $granted = time;
	$on_a->query("SELECT redlock_release('least')");
	is($on_b->query("SELECT redlock_try('least')"), 'f', 'B can not have a lock that is held for 3 s at least');
	is($on_a->query("SELECT redlock_try('least')"), 'f', 'nor can A again');
	$on_b->query("SELECT redlock_acquire('least', scope => 'session')");
	cmp_ok(time - $began, '>=', 3, 'B gets it when they are over');
	cmp_ok(time - $granted, '<', 30, 'not much later');
	$on_b->query("SELECT redlock_release('least')");

	# while held, the lock is renewed like any lock
	$on_a->query("SELECT redlock_acquire('least', ttl => '1 s', scope => 'session', hold_at_least => '100 ms')");
	$on_b->send("SELECT redlock_acquire('least', wait => '2500 ms')");
	is($on_b->result->{state}, '55P03', 'hold_at_least is no limit for a holder that is at work');
	my $before = stat_of($host_b, 'woken');
	$on_b->send("SELECT redlock_acquire('least', scope => 'session') > 0");
	wait_subscribed('redlock:least', 1);
	$on_a->query("SELECT redlock_release('least')");
	is($on_b->result->{out}, 't', 'past it, a release frees the lock');
	is(stat_of($host_b, 'woken'), $before + 1, 'and tells the waiter');
	$on_b->query("SELECT redlock_release('least')");
}

# ---- a holder that dies ----

{
	my $ttl = 4;
	$on_a->query("SELECT redlock_acquire('dies', ttl => '$ttl s', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('dies', scope => 'session') > 0");
	wait_subscribed('redlock:dies', 1);
	my $postmaster = $host_a->{_pid};
	my @pids = ($postmaster);
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		my $line = eval { PostgreSQL::Test::Utils::slurp_file($stat) } // next;
		push @pids, $1 if $line =~ /^(\d+) .*\) \S $postmaster /;
	}
	# a stopped postmaster starts no process
	kill 'STOP', $postmaster;
	kill 'KILL', @pids;
	my $died = time;
	is($on_b->result->{out}, 't', 'B gets the lock of a host that died');
	my $took = time - $died;
	# the last renewal was a third of the ttl ago at the most
	cmp_ok($took, '>=', $ttl * 2 / 3 - 0.7, "not before its ttl is over ($took s)");
	cmp_ok($took, '<', 30, 'and soon after');
	is($on_b->query("SELECT redlock_check('dies') > '0'"), 't', 'and holds it');
	$host_a->{_pid} = undef;
}

$on_b->quit;
done_testing();

# Each later holder of a lock has a larger fencing token, on any host, by any clock, and with any
# counters of a minority.
#
# Protects from (invariants 2 and 13): a token not larger than an earlier token, or serving two
# holders; hand-overs beyond the token range of a grant; a token held by no majority of nodes; a
# wrong clock dragging all counters into the future, or refused without a message; counters staying
# for ever, or exceeding Lua's integers; a release leaving nothing to refuse a late renewal
# (invariant 6).
#
# The counter of a lock is in the key with its name, NUL and "token".  A grant raises the counter
# by the number of its tokens, or more.

use strict;
use warnings;

use List::Util qw(max shuffle);
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

use constant {
	SPAN      => 1001,                # tokens of a grant: LUA_SPAN
	LIMIT     => 3,                   # of hand-overs
	MINUTE_US => 60 * 1000000,
	KEEP_MS   => 7200000,             # LUA_COUNTER_KEEP_MS
	NEAR_MS   => 1000000,             # COUNTER_NEAR_MS
};

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '60s'\nredlock.handover_limit = " . LIMIT;
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $on_a = session($host_a);
my $on_b = session($host_b);

sub now_us { return int(time * 1000000); }

# The counters of the nodes that answer; 0: none.
sub counters
{
	my ($name) = @_;
	return map { $_->cli('EVAL', q{return redis.call('GET', KEYS[1] .. '\0token')}, 1, "redlock:$name") || 0 }
	  grep { $_->answers } @nodes;
}

# Writes a counter as a node does: a counter raised by a little keeps its expiry.
sub set_counter
{
	my ($node, $name, $counter) = @_;
	my $keep_ms = int(KEEP_MS + max(0, $counter - now_us()) / 1000);

	die 'not set' if $node->cli('EVAL',
		q{return redis.call('SET', KEYS[1] .. '\0token', ARGV[1], 'PX', ARGV[2])},
		1, "redlock:$name", $counter, $keep_ms) ne 'OK';
	return;
}

sub delete_counter
{
	my ($node, $name) = @_;

	$node->cli('EVAL', q{return redis.call('DEL', KEYS[1] .. '\0token')}, 1, "redlock:$name");
	return;
}

# Counters stay for two hours beyond the time of their value, and not for ever.  A counter raised
# by 1000 s at most keeps its expiry (COUNTER_NEAR_MS).
sub are_kept
{
	my ($name) = @_;
	my @wrong;

	foreach my $node (@nodes)
	{
		my ($counter, $ttl_ms) = split ' ', $node->cli('EVAL',
			q{local key = KEYS[1] .. '\0token' return (redis.call('GET', key) or '0') .. ' ' .. redis.call('PTTL', key)}, 1, "redlock:$name");
		my $beyond_ms = $ttl_ms - max(0, $counter - now_us()) / 1000;

		push @wrong, "$counter for $ttl_ms ms" if $beyond_ms < KEEP_MS - NEAR_MS - 60000 || $beyond_ms > KEEP_MS + 1000;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("@wrong", '', 'counters are kept for two hours beyond the time that they stand for');
	return;
}

# Number of nodes with exactly this counter.
sub holding
{
	my ($name, $counter) = @_;
	return scalar grep { $_ == $counter } counters($name);
}

sub acquire
{
	my ($session, $name) = @_;
	return $session->query("SELECT redlock_acquire('$name', scope => 'session')");
}

sub release
{
	my ($session, $name) = @_;
	return $session->query("SELECT redlock_release('$name')");
}

# ---- one after another, on two hosts ----

{
	my ($last, $wrong) = (0, 0);

	foreach my $round (1 .. 60)
	{
		my $session = rand() < 0.5 ? $on_a : $on_b;
		my $token = acquire($session, 'job');

		$wrong++ unless $token > $last && $session->query("SELECT redlock_token('job')") == $token;
		$last = $token;
		release($session, 'job');
	}
	is($wrong, 0, 'each of 60 holders, on one host or the other, has a larger token than the last');
	cmp_ok(abs($last - now_us()), '<', MINUTE_US, 'tokens are about the time');
}

# ---- on two hosts at a time ----

# In the order of tokens, each holder got the lock after the former holder's release.
{
	foreach my $host ($host_a, $host_b)
	{
		$host->safe_psql('postgres',
			'CREATE TABLE grants (token bigint, acquired timestamptz, released timestamptz)');
		my $run = session($host);
		$run->query(
			<<~'SQL');
			CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
			DECLARE
			    t bigint;
			    acquired timestamptz;
			BEGIN
			    FOR i IN 1 .. 60 LOOP
			        t := redlock_acquire('many', scope => 'session');
			        acquired := clock_timestamp();
			        PERFORM pg_sleep(0.002 * random());
			        INSERT INTO grants VALUES (t, acquired, clock_timestamp());
			        COMMIT;
			        PERFORM redlock_release('many');
			    END LOOP;
			END $$
			SQL
		$run->quit;
	}
	my @sessions = map { session($_) } ($host_a, $host_b) x 3;
	$_->send('CALL work()') foreach @sessions;
	is(join('', map { $_->result->{state} } @sessions), '', 'three sessions on each of two hosts work');
	$_->quit foreach @sessions;

	my @grants = sort { $a->[0] <=> $b->[0] }
	  map { [ split /\|/ ] }
	  map {
		split /\n/,
		  $_->safe_psql('postgres',
			"SELECT token, extract(epoch FROM acquired), extract(epoch FROM released), '" . $_->name . "' FROM grants")
	  } $host_a, $host_b;
	is(scalar @grants, 360, 'each of them has what it did written down');
	my ($early, $same, $turns) = (0, 0, 0);
	foreach my $n (1 .. $#grants)
	{
		$same++ if $grants[$n][0] == $grants[ $n - 1 ][0];
		$early++ if $grants[$n][1] < $grants[ $n - 1 ][2];
		$turns++ if $grants[$n][3] ne $grants[ $n - 1 ][3];
	}
	is($same, 0, 'no token was used twice');
	is($early, 0, 'the order of tokens is that of the time');
	cmp_ok($turns, '>', 10, "and not for want of contention: the lock went to the other host $turns times");
}

# ---- hand-overs use a range, and stay in it ----

{
	my $sessions = 11;
	my @sessions = map { session($host_a) } 1 .. $sessions;
	my (@tokens, @counters, $wrong);
	my $before = $host_a->safe_psql('postgres', 'SELECT handed_over FROM redlock_stats');

	$sessions[0]->query("SELECT redlock_acquire('range', scope => 'session')");
	foreach my $n (1 .. $#sessions)
	{
		$sessions[$n]->send("SELECT redlock_acquire('range', scope => 'session')");
		$host_a->poll_query_until('postgres',
			"SELECT count(*) = $n FROM redlock_locks WHERE resource = 'range' AND state = 'queued'")
		  or die 'not queued';
	}
	foreach my $n (0 .. $#sessions)
	{
		push @tokens, $n == 0 ? $sessions[0]->query("SELECT redlock_token('range')") : $sessions[$n]->result->{out};
		my %times;
		$times{$_}++ foreach counters('range');
		push @counters, (grep { $times{$_} >= 3 } keys %times)[0] // 0;
		release($sessions[$n], 'range');
	}
	note 'tokens, as distances to the counters: ' . join ' ', map { $counters[$_] - $tokens[$_] } 0 .. $#tokens;
	is(scalar(grep { $tokens[$_] <= $tokens[ $_ - 1 ] } 1 .. $#tokens), 0, '11 holders in a row: the tokens increase');
	is(scalar(grep { $_ == 0 } @counters), 0, 'a majority has one counter at all times');
	is( scalar(grep { $tokens[$_] > $counters[$_] || $tokens[$_] <= $counters[$_] - SPAN } 0 .. $#tokens),
		0, 'none is beyond the range of its grant');
	is($tokens[0] + SPAN - 1, $counters[0], 'the first holder has the first of the range');
	my %grants;
	push @{ $grants{ $counters[$_] } }, $tokens[$_] foreach 0 .. $#tokens;
	is(max(map { scalar @$_ } values %grants), LIMIT + 1, 'a grant serves as many as the limit says, and one')
	  or diag(explain(\%grants));
	is( $host_a->safe_psql('postgres', 'SELECT handed_over FROM redlock_stats') - $before,
		$sessions - keys %grants, 'the others were handed over');
	$_->quit foreach @sessions;

}

# ---- a release leaves a tombstone against late renewals ----

# The counter is then one above the token, so a late renewal does not create the key again.
{
	my $renewed = sub { $host_a->safe_psql('postgres', 'SELECT renewed FROM redlock_stats') };
	my $token = acquire($on_a, 'brief');

	wait_until(sub { holding('brief', $token + SPAN - 1) == 5 }, 'all nodes have counted');
	release($on_a, 'brief');
	wait_until(sub { key_count('redlock:brief', @nodes) == 0 }, 'it is released');
	is(holding('brief', $token + SPAN - 1), 5, 'never renewed: its release writes no counter');

	my $before = $renewed->();
	$token = $on_a->query("SELECT redlock_acquire('renewed', scope => 'session', ttl => '1s')");
	wait_until(sub { $renewed->() > $before && key_count('redlock:renewed', @nodes) == 5 }, 'a lease is renewed');
	release($on_a, 'renewed');
	wait_until(sub { key_count('redlock:renewed', @nodes) == 0 }, 'it is released');
	is(holding('renewed', $token + SPAN), 5, 'its release raises all counters over its token');
}

# ---- nodes that count differently ----

# The range ends with the counter of a majority.
sub is_agreed
{
	my ($session, $name, $last, $when) = @_;
	my $token = acquire($session, $name);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($token, '>', $last, "$when: the token is larger than the last one");
	cmp_ok(holding($name, $token + SPAN - 1), '>=', 3, "$when: and a majority holds the end of its range");
	release($session, $name);
	return $token;
}

{
	my $last = is_agreed($on_a, 'differ', 0, 'at first');
	my $base = now_us();

	set_counter($nodes[$_], 'differ', $base + $_ * MINUTE_US) foreach shuffle 0 .. 4;
	$last = is_agreed($on_b, 'differ', max($last, $base + 2 * MINUTE_US), 'five counters, all ahead of time');
	foreach my $round (1 .. 8)
	{
		my @minority = (shuffle @nodes)[ 0, 1 ];
		my $session = $round % 2 ? $on_a : $on_b;

		# if fewer than three nodes remember the last token, tokens have no order
		set_counter($_, 'differ', $last + SPAN - 1) foreach @nodes;
		foreach my $node (@minority)
		{
			my $how = int rand 3;
			delete_counter($node, 'differ') if $how == 0;
			set_counter($node, 'differ', $last + int rand(2 * MINUTE_US)) if $how == 1;
			set_counter($node, 'differ', $last - int rand(2 * MINUTE_US)) if $how == 2;
		}
		$last = is_agreed($session, 'differ', $last, "a minority counts as it likes ($round)");
	}
	$nodes[$_]->pause foreach 1, 3;
	$last = is_agreed($on_a, 'differ', $last, 'a minority does not answer');
	$nodes[$_]->resume foreach 1, 3;
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	$nodes[$_]->kill9 foreach 0, 2;
	$last = is_agreed($on_b, 'differ', $last, 'another minority is dead');
	$nodes[$_]->start foreach 0, 2;
	wait_nodes_ready($_, 5) foreach $host_a, $host_b;
	$last = is_agreed($on_a, 'differ', $last, 'all are back');

	are_kept('differ');
}

# ---- the largest counters ----

{
	my $end   = '9007199254740992';    # 2^53
	my $bound = now_us() + 2**51;      # no clock shows this time

	acquire($on_a, 'large');
	release($on_a, 'large');
	set_counter($nodes[$_], 'large', $bound - MINUTE_US) foreach 0 .. 4;
	my $token = acquire($on_a, 'large');
	is($token, $bound - MINUTE_US + 1, 'a token of seventy years from now is exact');
	cmp_ok(holding('large', $token + SPAN - 1), '>=', 3, 'and held by a majority');
	release($on_a, 'large');
	my ($last, $repeated) = ($token, 0);
	foreach (1 .. 12)
	{
		$token = $on_a->query("SELECT redlock_acquire('large', scope => 'session', hold_at_most => '1 h')");
		$repeated++ if $token != $last + SPAN;
		$last = $token;
		release($on_a, 'large');
	}
	is($repeated, 0, 'each later grant begins one span of tokens further on');
	my @wrong = ([ $bound + 10 * MINUTE_US, 'its counter is out of all bounds' ],
		[ $end - 2, 'AHEAD of all time: the counter' ]);
	foreach my $wrong (@wrong)
	{
		my ($counter, $reason) = @$wrong;

		set_counter($nodes[$_], 'large', $counter) foreach 0 .. 4;
		my $result = $on_a->run("SELECT redlock_try('large')");
		is($result->{state}, '08006', "none beyond it, at $counter");
		like($result->{detail}, qr/$reason/, 'and the reason is told');
		wait_until(sub { key_count('redlock:large', @nodes) == 0 }, 'no key is left', 30);
	}
	# two nodes may lack the token: a majority remains
	set_counter($nodes[$_], 'large', now_us()) foreach 0 .. 2;
	cmp_ok(acquire($on_a, 'large'), '<', now_us() + MINUTE_US, "a minority at 2^53 is in nobody's way");
	release($on_a, 'large');
	delete_counter($_, 'large') foreach @nodes;
}

# ---- clocks ----

# Starts a cluster, or starts it again, with its clock set forward or back.
sub start_with_clock
{
	my ($library, $host, $offset) = @_;
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAKETIME} = $offset;
	local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;

	$host->_update_pid(-1);
	$host->stop;
	$host->start;
	wait_nodes_ready($host, 5);
	my $clock = session($host);
	note "the clock of this host is put by $offset: " . $clock->query('SELECT clock_timestamp()');
	return $clock;
}

SKIP:
{
	my ($library) = glob '/usr/lib/*/faketime/libfaketime.so.1';
	skip 'no libfaketime (Debian: faketime)', 1 unless $library;

	my $host_c = redlock_cluster('c', nodes => \@nodes, conf => $conf);
	my ($result, $on_c, $last, $token);

	# too far ahead: other hosts are not disturbed
	$on_c = start_with_clock($library, $host_c, '+2h');
	$result = $on_c->run("SELECT redlock_try('clock')");
	is($result->{state}, '08006', 'a host whose clock is two hours ahead gets no lock');
	like($result->{detail}, qr/AHEAD of the clock of this node: that of the client, by 7[12]\d\d s/,
		'the error names the clock, and by how much it is ahead');
	cmp_ok(scalar(my @n = $result->{detail} =~ /AHEAD of the clock/g), '>=', 3, 'for a majority of nodes');
	wait_until(sub { key_count('redlock:clock', @nodes) == 0 }, 'it leaves no key', 30);
	$last = acquire($on_a, 'clock');
	cmp_ok(abs($last - now_us()), '<', MINUTE_US, 'another host has the token that it would have had');
	release($on_a, 'clock');
	$on_c->quit;

	# ahead within the bound
	$on_c = start_with_clock($library, $host_c, '+30m');
	$token = acquire($on_c, 'clock');
	cmp_ok($token, '>', now_us() + 28 * MINUTE_US, 'a host whose clock is half an hour ahead has tokens of its time');
	release($on_c, 'clock');
	$last = acquire($on_a, 'clock');
	cmp_ok($last, '>', $token, 'the next holder has a larger one, though its clock is right');
	release($on_a, 'clock');
	are_kept('clock');
	$on_c->quit;

	# behind
	$on_c = start_with_clock($library, $host_c, '-3h');
	$token = acquire($on_c, 'clock');
	cmp_ok($token, '>', $last, 'a host whose clock is three hours behind has larger tokens, too');
	release($on_c, 'clock');
	cmp_ok(acquire($on_a, 'clock'), '>', $token, 'and so has the next');
	release($on_a, 'clock');
	$token = acquire($on_c, 'behind');
	cmp_ok($token, '>', now_us() - 62 * MINUTE_US, 'where there is no counter yet it counts as one hour behind');
	release($on_c, 'behind');
	cmp_ok(acquire($on_a, 'behind'), '>', $token, 'the next token is larger');
	release($on_a, 'behind');
	is($on_c->query("SELECT redlock_try('clock')"), 't', 'its locks work');
	$on_c->quit;
	$host_c->stop;
}

# ---- the broker is replaced ----

{
	my $token = acquire($on_a, 'job');
	replace_broker($host_a);
	is($on_a->query("SELECT redlock_token('job')"), $token, 'the token is the same');
	is($on_a->query("SELECT redlock_acquire('job', scope => 'session')"), $token, 'the holder acquires the lock again with the same token');
	is($on_a->query("SELECT redlock_fence('job')"), $token, 'and at the fence');
	is($on_a->query('SELECT redlock_release_all()'), 2, 'it is released');
	cmp_ok(acquire($on_b, 'job'), '>', $token, 'the other host has a larger one');
	release($on_b, 'job');
}

# ---- what is left on the nodes ----

{
	my $script = <<~'LUA';
		local counters, wrong = 0, {}
		for _, key in ipairs(redis.call('KEYS', '*')) do
			if string.sub(key, -6) == '\0token' then
				local c = redis.call('GET', key)
				counters = counters + 1
				if not string.match(c, '^[1-9]%d*$') or tonumber(c) >= 2^53 or redis.call('PTTL', key) < 0 then
					table.insert(wrong, key .. '=' .. c)
				end
			elseif string.sub(key, -7) ~= '\0marker' and string.sub(key, 1, 14) ~= 'redlock:\0hosts' then
				table.insert(wrong, key)
			end
		end
		return {counters, table.concat(wrong, ' ')}
		LUA
	foreach my $node (@nodes)
	{
		wait_until(sub { (split /\n/, $node->cli('EVAL', $script, 0))[1] // '' eq '' },
			'only a marker, the list of hosts, and counters below 2^53 that will expire', 30)
		  or diag($node->cli('EVAL', $script, 0));
		cmp_ok((split /\n/, $node->cli('EVAL', $script, 0))[0], '>=', 5, 'of all locks');
	}
}

$_->quit foreach $on_a, $on_b;
done_testing();

# Four hosts want one lock: each gets its turn, in order.  Their messages through the nodes are
# hints.
#
# Protects from: a host whose sessions wait for ever while other hosts take turns; a turn for
# the last host to ask in place of the longest waiter; a host forgotten after its turn; a host
# getting one grant a turn, since its calls have hold_at_most; a host missing its turn, and stopping
# the next hosts; malformed, forged or repeated messages of strangers crashing or growing a broker,
# or granting a lock; no lock for a user without the right to publish.
#
# Tokens show the order, so the speed of the machine does not matter.

use strict;
use warnings;

use List::Util qw(sum);
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '60s'\nredlock.handover_limit = 1000\nrestart_after_crash = on";
my @hosts = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c d);

# Each grant is a row on its host.
foreach my $host (@hosts)
{
	$host->safe_psql('postgres', <<'SQL');
CREATE TABLE grants (token bigint);
CREATE PROCEDURE take(times int, seconds float8 DEFAULT 0.002, limits interval[] DEFAULT '{NULL}', ttls interval[] DEFAULT '{NULL}') LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. times LOOP
		INSERT INTO grants VALUES (redlock_acquire('turn', ttl => ttls[1 + i % cardinality(ttls)], hold_at_most => limits[1 + i % cardinality(limits)]));
		PERFORM pg_sleep(seconds);
		COMMIT;
	END LOOP;
END $$;
SQL
}

# The hosts of the grants, in order: 0, 0, 2 ...
sub order_of_grants
{
	my %host_of;

	foreach my $h (0 .. $#hosts)
	{
		$host_of{$_} = $h foreach split /\n/, $hosts[$h]->safe_psql('postgres', 'SELECT token FROM grants');
	}
	return map { $host_of{$_} } sort { $a <=> $b } keys %host_of;
}

sub turns
{
	my @turns;

	foreach my $host (@_)
	{
		push @turns, $host if !@turns || $turns[-1] != $host;
	}
	return @turns;
}

# ---- each gets its turn ----

{
	my @sessions = map { my $host = $_; map { session($host) } 1 .. 3 } @hosts;

	$_->send('CALL take(60)') foreach @sessions;
	$_->result foreach @sessions;

	# Only grants count while sessions of all hosts wait: until the first host is done.
	my @grants = order_of_grants();
	is(scalar @grants, 12 * 60, 'each session got the lock each time');
	my (%left, @contended);
	$left{$_} = 3 * 60 foreach 0 .. 3;
	foreach my $host (@grants)
	{
		push @contended, $host;
		last if --$left{$host} <= 2 * 3;
	}
	my @turns = turns(@contended);
	@turns = @turns[ 8 .. $#turns ]; # at first the hosts do not know of each other yet
	cmp_ok(scalar @turns, '>=', 20, 'there are ' . @turns . ' turns');

	# Between two turns of a host each other host should have a turn.  By chance a host may have
	# more turns, and on a busy machine the next host comes late.
	my ($skipped, %last) = (0);
	foreach my $i (0 .. $#turns)
	{
		my $host = $turns[$i];
		if (defined $last{$host})
		{
			my %others = map { $_ => 1 } @turns[ $last{$host} + 1 .. $i - 1 ];
			$skipped += 3 - keys %others;
		}
		$last{$host} = $i;
	}
	cmp_ok($skipped, '<=', @turns * 0.6, "few hosts have a second turn before another had one ($skipped)")
	  or diag("@turns");
	my @count = map { my $h = $_; scalar grep { $_ == $h } @turns } 0 .. 3;
	my $jain = sum(@count)**2 / (4 * sum(map { $_**2 } @count));
	cmp_ok($jain, '>=', 0.95, "Jain's index of turns is $jain (@count)");
	$_->quit foreach @sessions;
}

# ---- a long turn ends when each session had the lock once ----

{
	my @sessions = map { my $host = $_; map { session($host) } 1 .. 3 } @hosts[ 0, 1 ];

	$_->safe_psql('postgres', 'TRUNCATE grants') foreach @hosts;
	$_->send('CALL take(8, 0.1)') foreach @sessions;
	$_->result foreach @sessions;
	my @grants = order_of_grants();
	my @lengths = (0);
	foreach my $i (0 .. $#grants)
	{
		push @lengths, 0 if $i > 0 && $grants[$i] != $grants[ $i - 1 ];
		$lengths[-1]++;
	}
	my ($median) = (sort { $a <=> $b } @lengths)[ @lengths / 2 ];
	note("turns of @lengths grants");
	cmp_ok($median, '<=', 4, 'hosts with three sessions each');
	$_->quit foreach @sessions;
}

# ---- hold_at_most and different ttls cost a host no turns ----

foreach my $terms (
	"ARRAY['1 min']::interval[]",
	"ARRAY['1 min', '2 min', '10 s']::interval[]",
	"ARRAY['10 s', NULL]::interval[]",
	"ttls => ARRAY['5N s']::interval[]", # N is the number of the session
	"ARRAY[NULL, '10 s', '20 s']::interval[], ARRAY['4N s', '5N s']::interval[]")
{
	my @sessions = map { my $host = $_; map { session($host) } 1 .. 3 } @hosts[ 0, 1 ];

	$_->safe_psql('postgres', 'TRUNCATE grants') foreach @hosts;
	$sessions[$_]->send("CALL take(60, 0.002, " . ($terms =~ s/N s/$_ s/gr) . ')') foreach 0 .. 2;
	$_->send('CALL take(60)') foreach @sessions[ 3 .. 5 ];
	$_->result foreach @sessions;
	my @grants = order_of_grants();
	is(scalar @grants, 6 * 60, 'each session got the lock each time');

	# until the sessions of a host have nearly finished
	my @count = (0, 0);
	foreach my $host (@grants)
	{
		last if ++$count[$host] >= 3 * 60 - 6;
	}
	my $share = $count[0] / $count[1];
	cmp_ok($share, '>=', 1 / 3, "a host that asks for $terms has its share ($count[0] grants to $count[1])");
	cmp_ok($share, '<=', 3, 'the other host has its share, too');
	$_->quit foreach @sessions;
}

# ---- each holder of a turn has a limit of its own ----

{
	my ($first, $second) = map { session($hosts[0]) } 1 .. 2;
	my $stats = sub { $hosts[0]->safe_psql('postgres', "SELECT $_[0] FROM redlock_stats") };
	my $until = sub { $hosts[0]->safe_psql('postgres', "SELECT until IS NOT NULL FROM redlock_locks WHERE resource = 'limit' AND state = 'held'") };
	my ($handed_over, $lost, $renewed) = split /\|/, $stats->('handed_over, lost, renewed');
	my $hand_over = sub {
		my ($from, $to, $how) = @_;
		$to->send("SELECT redlock_acquire('limit', scope => 'session'$how)");
		ok( $hosts[0]->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'limit' AND state = 'queued'"),
			'a session waits');
		$from->query("SELECT redlock_release('limit')");
		my $token = $to->result->{out};
		is($stats->('handed_over'), ++$handed_over, 'the lease is handed over');
		return $token;
	};

	my $token = $first->query("SELECT redlock_acquire('limit', scope => 'session', hold_at_most => '5 s')");
	my $over = $hosts[0]->safe_psql('postgres', "SELECT until FROM redlock_locks WHERE resource = 'limit'");
	is($hand_over->($first, $second, ''), $token + 1, 'a session without a limit gets the next token');
	is($until->(), 'f', 'and no limit');
	ok($hosts[0]->poll_query_until('postgres', "SELECT clock_timestamp() > timestamptz '$over' + interval '0.2 s'"), 'the limit of the holder before is over');
	is($second->query("SELECT redlock_check('limit') > '0'"), 't', 'which does not end the lease of the next');
	is($hand_over->($second, $first, ", hold_at_most => '5 min'"), $token + 2, 'a session with a limit gets the next token');
	is($until->(), 't', 'and its limit');
	is($stats->('lost'), $lost, 'nothing was lost');
	is($hand_over->($first, $second, ", hold_at_most => '100 ms'"), $token + 3, 'a session with a sooner limit gets the next token');
	wait_until(sub { $stats->('lost') == $lost + 1 }, 'the limit of the new holder ends the lease');
	is($stats->('renewed'), $renewed, 'before the broker had another reason to look');
	my $result = $second->run("SELECT redlock_check('limit')");
	is($result->{state}, '40001', 'the session that holds it is told');
	like($result->{detail}, qr/hold_at_most of 100 ms/, 'the detail names the limit of the session itself');
	$second->query("SELECT redlock_release('limit')");
	is($first->query("SELECT redlock_try('limit')"), 't', 'the lock is free');
	$_->quit foreach $first, $second;
}

# ---- the longest waiter is next, whoever asked last ----

{
	my ($on_a, $on_b, $on_c) = map { session($_) } @hosts[ 0 .. 2 ];
	my ($a, $b, $c) = map { host_id($_) } @hosts[ 0 .. 2 ];
	my $heard = listener($nodes[0], "redlock:?host:$a", 'redlock:longest');

	$on_a->query("SELECT redlock_acquire('longest', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('longest', scope => 'session') > 0");
	wait_until(sub { ($heard->waited('longest', $b) // 0) >= 1000000 }, 'a host tells that it has waited for a second');
	$on_c->send("SELECT redlock_acquire('longest', scope => 'session') > 0");
	wait_until(sub { defined $heard->waited('longest', $c) }, 'a third host announces its wait');

	# the second host does not ask again, and the first host does: at the second message the holder
	# knows of the first host
	my $broker = broker_pid($hosts[2]);
	kill 'STOP', $broker;
	foreach my $time (1 .. 2)
	{
		$heard->forget;
		wait_until(sub { defined $heard->waited('longest', $b) }, 'the first tells again');
	}
	$on_a->query("SELECT redlock_release('longest')");
	wait_until(sub { $heard->named }, 'a release');
	is_deeply($heard->named, [ $b, $c ], 'a release names the host with the longest wait first');
	is($on_b->result->{out}, 't', 'who has the lock then');
	kill 'CONT', $broker;
	$on_b->query("SELECT redlock_release('longest')");
	is($on_c->result->{out}, 't', 'and then the other');
	$on_c->query("SELECT redlock_release('longest')");
	$heard->quit;
	$_->quit foreach $on_a, $on_b, $on_c;
}

# ---- a host wants another turn at the end of a turn ----

{
	my ($holder, $next, $on_b) = map { session($_) } @hosts[ 0, 0, 1 ];
	my ($a, $b) = map { host_id($_) } @hosts[ 0, 1 ];
	my $heard = listener($nodes[0], "redlock:?host:$a", 'redlock:another');

	$holder->query("SELECT redlock_acquire('another', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('another', scope => 'session') > 0");
	wait_until(sub { defined $heard->waited('another', $b) }, 'another host waits');

	# A session holds the lock, and another session of its host waits, until the turn is over.
	foreach my $round (1 .. 20)
	{
		$next->send("SELECT redlock_acquire('another', scope => 'session') > 0");
		ok( $hosts[0]->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'another' AND state = 'queued'"),
			'and a session of this one');
		$holder->query("SELECT redlock_release('another')");
		wait_until(sub { $heard->named || $next->done }, 'a release, or a hand-over') or last;
		last if $heard->named;
		is($next->result->{out}, 't', 'a hand-over');
		($holder, $next) = ($next, $holder);
	}
	is_deeply($heard->named, [ $b, $a ], 'at the end of its turn a host names the other, and itself behind it');
	each_in_turn("SELECT redlock_release('another')", $on_b, $next);
	$heard->quit;
	$_->quit foreach $holder, $next, $on_b;
}

# ---- the next host does not come ----

# The host waits, and knows that another host holds the lock.
sub waits_for_it
{
	my ($host, $name) = @_;
	ok( $host->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_locks WHERE resource = '$name' AND state = 'waiting' AND held_by IS NOT NULL"),
		$host->name . ' waits');
}

foreach my $way (qw(STOP KILL))
{
	my ($holder, @waiters) = map { session($_) } @hosts;
	my $name = "next $way";

	$holder->query("SELECT redlock_acquire('$name', scope => 'session')");
	foreach my $h (1 .. 3)
	{
		$waiters[ $h - 1 ]->send("SELECT redlock_acquire('$name', scope => 'session') > 0");
		waits_for_it($hosts[$h], $name);
	}

	# The longest waiter is next, and its broker is gone.
	my $broker = broker_pid($hosts[1]);
	kill $way, $broker;
	$holder->query("SELECT redlock_release('$name')");
	my %waits = map { $_ => 1 } 0 .. 2;
	while (%waits)
	{
		my ($done) = grep { $waiters[$_]->done } sort keys %waits;
		sleep(0.01), next if !defined $done;
		delete $waits{$done};
		my $result = $waiters[$done]->result;
		if ($way eq 'KILL' && $done == 0)
		{
			ok($result->{dead}, 'the server of a broker that is killed starts anew');
			$hosts[1]->poll_query_until('postgres', 'SELECT true');
			next;
		}
		is($result->{out}, 't', $hosts[ $done + 1 ]->name . ' has it when the next gets ' . $way);
		$waiters[$done]->query("SELECT redlock_release('$name')");
		kill 'CONT', $broker if $way eq 'STOP' && keys %waits == 1;
	}
	$_->quit foreach $holder, @waiters[ 1, 2 ];
	$waiters[0]->quit if $way ne 'KILL';
}

# ---- a host does not wait for itself ----

# Its own key, not yet released, refuses the host.
{
	my $on_a = session($hosts[0]);
	my $stranger = 'f' x 16;
	my $lines = IPC::Run::start([ 'redis-cli', '-p', $nodes[0]->port, 'SUBSCRIBE', 'redlock:own' ], '>', \my $heard);
	my $own;

	wait_until(sub { $lines->pump_nb; $heard =~ /subscribe/ }, 'a listener');
	foreach my $round (1 .. 100)
	{
		$heard = '';
		$on_a->query("SELECT redlock_acquire('own', scope => 'session')");
		($own) = $nodes[0]->cli('GET', 'redlock:own') =~ /^\w+:\d+:(\w{16})/;
		$_->cli('EVAL', "for i = 1, 2 do redis.call('PUBLISH', 'redlock:\\0host:$own', 'want\\0redlock:own\\0' .. ARGV[i] .. '\\0001000000\\0') end", 0, $own, $stranger)
		  foreach @nodes;
		$on_a->query("SELECT redlock_release('own')");
		wait_until(sub { $lines->pump_nb; $heard =~ /free/ }, 'a release') or last;
		last if $heard =~ /$stranger/;
	}
	like($heard, qr/$stranger/, 'a release names who wants the lock');
	unlike($heard, qr/$own/, 'but not the host that had it');
	$lines->kill_kill;
	$on_a->quit;
}

# ---- what strangers publish ----

{
	my ($on_a, $on_b) = map { session($_) } @hosts[ 0, 1 ];
	my $rss = sub { my $pid = broker_pid($hosts[0]); open(my $in, '<', "/proc/$pid/status") or die $!; my ($kb) = map { /^VmRSS:\s+(\d+)/ ? $1 : () } <$in>; $kb };
	my $flood = <<'LUA';
local hosts = redis.call('PUBSUB', 'CHANNELS', 'redlock:*host:*')
local key = ARGV[1]
local words = {'', '\0', 'free', 'free\0', 'free\0-1\0', 'free\0009007199254740991\0', 'want\0', 'want\0' .. key .. '\0',
	'want\0' .. key .. '\0xyz\0001\0', string.rep('\0', 1000), string.rep('free\0', 2000), 'want\0' .. string.rep('k', 5000) .. '\0'}
for i = 1, 2000 do
	local id = string.format('%016x', i * 2654435761 % 4294967296 + 1)
	local named = 'free\0' .. tostring(i % 7 == 0 and 9007199254740991 or i) .. '\0'
	for j = 1, 20 do
		named = named .. string.format('%016x', i * j + 1) .. '\000999999999999\0'
	end
	redis.call('PUBLISH', key, named)
	redis.call('PUBLISH', key, words[i % #words + 1])
	for _, channel in ipairs(hosts) do
		redis.call('PUBLISH', channel, 'want\0' .. key .. '\0' .. id .. '\000999999999999\0')
		redis.call('PUBLISH', channel, words[i % #words + 1])
	end
end
return #hosts
LUA
	$on_a->query("SELECT redlock_acquire('flood', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('flood', scope => 'session') > 0");
	waits_for_it($hosts[1], 'flood');
	my @brokers = map { broker_pid($_) } @hosts;
	my $token = $on_a->query("SELECT redlock_token('flood')");
	$_->cli('EVAL', $flood, 0, 'redlock:flood') foreach @nodes;
	my $before = $rss->();
	foreach (1 .. 4)
	{
		is($_->cli('EVAL', $flood, 0, 'redlock:flood'), 4, 'each host hears its channel') foreach @nodes;
	}
	is($on_a->query("SELECT redlock_check('flood') > '0', redlock_token('flood') = $token"), 't|t', 'the holder keeps the lock and its token');
	ok(!$on_b->done, 'and nobody else');
	$on_a->query("SELECT redlock_release('flood')");
	is($on_b->result->{out}, 't', 'the next has it when it is released, though others were named');
	is_deeply([ map { broker_pid($_) } @hosts ], \@brokers, 'no broker failed');
	# a sanitizer's malloc keeps much freed memory, but less than a flood brings
	cmp_ok($rss->() - $before, '<', ($ENV{ASAN_OPTIONS} ? 64 : 4) * 1024, 'nor grew');
	$on_b->query("SELECT redlock_release('flood')");
	foreach my $on ($on_a, $on_b)
	{
		# the nodes may not know of the last release yet
		wait_until(sub { $on->query("SELECT redlock_try('flood', scope => 'session') AND redlock_release('flood')") eq 't' },
			'the lock is as any other');
	}
	$_->quit foreach $on_a, $on_b;
}

# ---- users who may not publish, or subscribe ----

foreach my $rights ('-publish', '-pubsub', 'resetchannels', '-publish -pubsub -subscribe')
{
	my ($on_a, $on_b) = map { session($_) } @hosts[ 2, 3 ];
	my $name = "rights $rights";

	$_->cli('ACL', 'SETUSER', 'default', split / /, $rights) foreach @nodes;
	$_->cli(qw(CLIENT KILL TYPE pubsub)) foreach @nodes;
	$on_a->query("SELECT redlock_acquire('$name', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('$name', scope => 'session') > 0");
	waits_for_it($hosts[3], $name);
	$on_a->query("SELECT redlock_release('$name')");
	is($on_b->result->{out}, 't', "locks work: $rights");
	$on_b->query("SELECT redlock_release('$name')");
	$_->cli(qw(ACL SETUSER default +@all allchannels)) foreach @nodes;
	$_->quit foreach $on_a, $on_b;
}

$_->stop foreach @hosts;
done_testing();

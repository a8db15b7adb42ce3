# An operator replaces all five nodes by docs/how-to/replace-nodes.md, while three servers use
# locks.  Some sessions hold locks throughout.  Other sessions take turns at a few locks; the test
# records each grant, and checks the grants at the end.  For a time an old node and a new node are
# down; a host gets each list late, first with a stopped broker; a server restarts.  The notes of
# this test are its transcript.
#
# Protects from: a lock held by two sessions, or lost, because the list changes; hosts shown as
# settled before their leases and the keys kept after a release are at the nodes of both lists;
# hosts never shown as settled; old nodes needed for ever.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $count = 5;
my @old = redis_nodes($count);
my @new = redis_nodes($count);
my %host = map {
	$_ => redlock_cluster($_, nodes => \@old, conf => "redlock.ttl = '3s'\nredlock.max_ttl = '30s'\nautovacuum = off")
} qw(a b c);
my $began = time;

# ---- the transcript ----

sub told
{
	note sprintf('%7.3f s  %s', time - $began, join '', @_);
	return;
}

sub shows
{
	my ($sql) = @_;

	foreach my $name (sort keys %host)
	{
		told("host $name: ", $host{$name}->safe_psql('postgres', $sql) =~ s/\n/; /gr);
	}
	return;
}

# The page tells the operator to look at these values.
my $state = q{
	SELECT concat_ws(', ', (SELECT string_agg(n || ' ' || list, ', ' ORDER BY list)
		FROM (SELECT list, count(*) AS n FROM redlock_nodes GROUP BY list) l),
		'unsettled ' || coalesce(unsettled::text, 'null'), 'kept_until ' || kept_until) FROM redlock_stats};
my $is_settled = "unsettled = 0 AND kept_until IS NULL AND (SELECT count(*) FROM redlock_nodes "
  . "WHERE list IN ('next', 'both') AND state = 'ready') = $count FROM redlock_stats";
my $is_done = "unsettled = 0 AND kept_until IS NULL AND (SELECT count(*) FILTER (WHERE list = 'now') "
  . "= $count AND count(*) = $count FROM redlock_nodes) FROM redlock_stats";

sub is_so
{
	my ($condition, @names) = @_;

	return !grep { $host{$_}->safe_psql('postgres', "SELECT $condition") ne 't' } @names;
}

sub give
{
	my ($nodes, $next, @names) = @_;
	my $text = "redlock.nodes = '" . node_urls(@$nodes) . "'\nredlock.nodes_next = '" . node_urls(@$next) . "'\n";

	foreach my $name (@names)
	{
		told("host $name gets redlock.nodes = ", $nodes == \@old ? 'the old nodes' : 'the new nodes',
			', redlock.nodes_next = ', @$next ? 'the new nodes' : q{''});
		$host{$name}->append_conf('postgresql.conf', $text);
		$host{$name}->reload;
	}
	return;
}

# ---- the load ----

# All hosts share the clock of a machine.  A session certainly holds the lock from "began" to
# "ended", because its lease is valid after "ended".
my $schema = q{
	CREATE TABLE grants (lock text, token bigint, began timestamptz, ended timestamptz);
	CREATE TABLE failures (at timestamptz, state text, message text);
	CREATE PROCEDURE take(lock text) LANGUAGE plpgsql AS $$
	DECLARE
		token bigint;
		began timestamptz;
		ended timestamptz;
	BEGIN
		BEGIN
			token := redlock_acquire(lock, wait => '20 s', scope => 'session');
			began := clock_timestamp();
			PERFORM pg_sleep(random() * 0.01);
			ended := clock_timestamp();
			IF redlock_check(lock) > '0' THEN
				INSERT INTO grants VALUES (lock, token, began, ended);
			END IF;
			PERFORM redlock_release(lock);
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO failures VALUES (clock_timestamp(), SQLSTATE, SQLERRM);
			PERFORM pg_sleep(0.05);
		END;
	END $$;
};
my %workers;

sub work
{
	my ($name) = @_;

	foreach my $lock (qw(one two three))
	{
		my $worker = session($host{$name});

		repeat($worker, "CALL take('$lock')");
		push @{ $workers{$name} }, $worker;
	}
	return;
}

# Waits until the sessions of each host have got ten more locks.
sub goes_on
{
	my ($what, @names) = @_;
	my %before = map { $_ => $host{$_}->safe_psql('postgres', 'SELECT count(*) FROM grants') } @names;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			!grep { $host{$_}->safe_psql('postgres', 'SELECT count(*) FROM grants') < $before{$_} + 10 } @names;
		},
		"$what: sessions of " . join(', ', @names) . ' get locks');
	return;
}

$host{$_}->safe_psql('postgres', $schema) foreach sort keys %host;
my %holder = map { $_ => session($host{$_}) } sort keys %host;
my $held = 40;

sub hold
{
	my ($name) = @_;

	$holder{$name}->query("CREATE TEMP TABLE mine AS SELECT '$name ' || i AS lock, "
		  . "redlock_acquire('$name ' || i, scope => 'session') AS token FROM generate_series(1, $held) i");
	return;
}

sub still_holds
{
	my ($name, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($holder{$name}->run("SELECT count(*) FROM mine WHERE redlock_check(lock) > '0' AND redlock_token(lock) = token")
		  ->{out}, $held, "$what: the session of host $name has its $held locks");
	return;
}

hold($_) foreach sort keys %host;
work($_) foreach sort keys %host;
goes_on('on the old nodes', sort keys %host);
told("three sessions on each of three hosts take turns at three locks; on each host one session holds $held");

# the key outlives its lease: no host holds the lock, and no host may get the lock
my $kept_for = 12;
my $kept_at = time;
$host{a}->safe_psql('postgres', "SELECT redlock_acquire('kept', hold_at_least => '$kept_for s')");
told("host a releases a lock that is kept for $kept_for s");

# ---- step 1: both lists, on one host after the other ----

give(\@old, \@new, qw(a b));
wait_until(sub { is_so("count(*) FILTER (WHERE list = 'next') = $count FROM redlock_nodes", qw(a b)) },
	'both lists are in force on two hosts');
goes_on('two hosts have both lists, one the old one', sort keys %host);
shows($state);
ok(!is_so($is_settled, 'c'), 'the host that was left behind is not settled');
ok(!is_so($is_settled, 'a'), 'nor is the one that has left a key at the old nodes alone');
wait_until(sub { is_so('unsettled = 0 FROM redlock_stats', qw(a b)) }, 'their leases are at both lists');
is(key_count('redlock:b 7', @new), $count, 'with keys at the new nodes');

told('an old node and a new node are killed');
$_->kill9 foreach $old[1], $new[3];
goes_on('a node of each list is down', sort keys %host);

my $broker = broker_pid($host{c});
kill 'STOP', $broker;
told("the broker of host c is stopped");
give(\@old, \@new, 'c');
sleep 0.7; # less than the remaining validity of the host's leases
ok(!is_so($is_settled, 'c'), 'a host whose broker did not yet see the lists is not settled');
kill 'CONT', $broker;
told("the broker of host c goes on");
wait_until(sub { is_so('unsettled = 0 FROM redlock_stats', 'c') }, 'its leases get to both lists');
still_holds($_, 'both lists') foreach sort keys %host;

told('host c is restarted');
my $before_restart = $host{c}->safe_psql('postgres', 'SELECT lost, unrenewed FROM redlock_stats');
$holder{c}->quit;
end_repeats($host{c});
$_->quit foreach splice @{ $workers{c} };
$host{c}->safe_psql('postgres', 'DROP TABLE end_repeats');
$host{c}->restart;
$holder{c} = session($host{c});
hold('c');
work('c');
goes_on('a server was restarted', sort keys %host);
like($before_restart, qr/^0\|/, 'no lease was lost there before');

told('the two nodes are back, with what they had');
$_->start foreach $old[1], $new[3];

wait_until(sub { is_so($is_settled, sort keys %host) }, 'all hosts are settled');
cmp_ok(time - $kept_at, '>=', $kept_for - 0.1, 'not before the end of the key that is kept');
shows($state);
still_holds($_, 'settled') foreach sort keys %host;

# ---- step 2: only the new list, on one host after the other ----

give(\@new, [], 'a');
wait_until(sub { is_so($is_done, 'a') }, 'the first host has left the old nodes');
goes_on('one host has the new list, two have both', sort keys %host);
shows($state);
told('a new node is killed');
$new[0]->kill9;
give(\@new, [], qw(c b));
wait_until(sub { is_so($is_done, sort keys %host) }, 'all hosts have left the old nodes');
shows($state);
$new[0]->start;

my $old_keys = 0;
$old_keys += grep { !/\0|token|marker/ } split /\n/, $_->cli('KEYS', 'redlock:* [0-9]*') foreach @old;
is($old_keys, 0, 'no lock is left at the old nodes');
told('the old nodes are switched off');
$_->kill9 foreach @old;
goes_on('the old nodes are gone', sort keys %host);
sleep 3.5; # longer than the ttl: a lease without its nodes ends
goes_on('a ttl later', sort keys %host);
still_holds($_, 'at the end') foreach sort keys %host;

# ---- the record ----

end_repeats($_) foreach values %host;
foreach my $name (sort keys %workers)
{
	# a session may have worked longer than the time limit of result()
	wait_until(sub { !grep { !$_->done } @{ $workers{$name} } }, "the sessions of host $name end");
	$_->quit foreach @{ $workers{$name} };
}
my @grants;
foreach my $name (sort keys %host)
{
	my $failed = $host{$name}->safe_psql('postgres', "SELECT string_agg(state || ' ' || message, '; ') FROM failures");
	my $rows = $host{$name}->safe_psql('postgres',
		'SELECT lock, token, extract(epoch FROM began), extract(epoch FROM ended) FROM grants');

	is($failed, '', "host $name: no acquisition failed");
	is($host{$name}->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), '0', "host $name: no lease was lost");
	push @grants, map { [ split /\|/, $_ ] } split /\n/, $rows;
	told("host $name: ", scalar(split /\n/, $rows), ' grants, ',
		$host{$name}->safe_psql('postgres',
			q{SELECT format('%s renewals, %s failed; %s leases lost', renewed, unrenewed, lost) FROM redlock_stats}));
}
my ($overlaps, $disorders) = (0, 0);
foreach my $lock (qw(one two three))
{
	my @held = sort { $a->[2] <=> $b->[2] } grep { $_->[0] eq $lock } @grants;

	foreach my $i (1 .. $#held)
	{
		$overlaps++ if $held[$i][2] < $held[ $i - 1 ][3];
		$disorders++ if $held[$i][1] <= $held[ $i - 1 ][1];
	}
}
told(scalar(@grants), " grants, of which $overlaps overlap another and $disorders have a token that is not later");
cmp_ok(scalar @grants, '>', 100, 'there was something to check');
is($overlaps, 0, 'no two sessions held a lock at a time');
is($disorders, 0, 'each token is later than the one before');

$_->quit foreach values %holder;
done_testing();

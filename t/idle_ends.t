# More ends of idle leases than in t/idle_keep.t: of shared leases, and at the server's stop.
# Tokens run little ahead of time.
#
# Protects from: a lease becoming idle after the stop of all idle leases, delaying the server's
# stop or staying at the nodes; an idle shared lock not released to a writer of another host; a
# shared lease idle for longer than its last holder asked; counters running ahead of the clocks,
# which keep tokens in order after a loss of data.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
# Commits of this user wait for a standby that does not exist.
my $conf = "redlock.ttl = '60s'\nsynchronous_commit = local\nsynchronous_standby_names = 'none'\n"
  . "wal_level = replica\nmax_wal_senders = 1";
my ($host, $other) = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);
my ($s, $b) = map { session($_) } $host, $other;

# Acquires and releases the lock.
sub pair
{
	my ($name, $mode, $keep_idle) = @_;

	return $s->query(
		"SELECT redlock_acquire('$name', scope => 'session', mode => '$mode', keep_idle => '$keep_idle') > 0, redlock_release('$name')");
}

sub is_idle
{
	my ($name, $mode, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($host->safe_psql('postgres', "SELECT state, mode FROM redlock_locks WHERE resource = '$name'"), "idle|$mode", $what);
	return;
}

# ---- a writer of another host waits ----

pair('wanted', 'shared', '10 min');
is_idle('wanted', 'shared', 'a shared lock becomes idle');
like($b->run("SELECT redlock_acquire('wanted', scope => 'session', wait => '20 s')")->{out}, qr/^\d+$/,
	'another host that waits for it gets it alone');
$b->query("SELECT redlock_release('wanted')");

# ---- a shorter idle time than before ----

foreach my $mode (qw(shared exclusive))
{
	pair("short $mode", $mode, '10 min');
	is_idle("short $mode", $mode, "$mode: a lease becomes idle");
	pair("after $mode", $mode, '10 min');    # by its end the broker has seen the first pair
	pair("short $mode", $mode, '200 ms');
	wait_until(sub { key_count("redlock:short $mode", @nodes) == 0 },
		"$mode: it is given up when the time of its last holder is over, and not at the next renewal, after 20 s", 15);
}

# ---- tokens are at most 32 ms ahead of time ----

# Each turn needs one token more than a grant has.  So each turn raises the bound, and uses few of
# the new tokens.
$s->query(<<'SQL');
CREATE FUNCTION turn() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 1002 LOOP
        PERFORM redlock_acquire('tokens', scope => 'session', keep_idle => '10 min'), redlock_release('tokens');
    END LOOP;
    PERFORM redlock_release_idle();
END $$;
SQL
my $most_us;
foreach my $round (1 .. 20)
{
	$s->query('SELECT turn() FROM generate_series(1, 10)');
	my $ahead_us = $nodes[0]->cli('EVAL', <<'LUA', 1, 'redlock:tokens');
local time = redis.call('TIME')
return string.format('%.0f', redis.call('GET', KEYS[1] .. '\0token') - time[1] * 1000000 - time[2])
LUA
	$most_us = $ahead_us unless defined $most_us && $most_us > $ahead_us;
}
cmp_ok($most_us, '<', 100000, 'many turns do not carry the counter away from the clock');
note "it was ahead by $most_us us at most";

# ---- sessions release after the end of all idle leases, as the server stops ----

# The server's stop ends the wait of the sessions, and the sessions go on with the commit.  The test
# stops the sessions until the broker has ended all idle leases.
my %last = map { $_ => session($host) } qw(exclusive shared);
$s->query('SELECT redlock_release_idle()');
pair('first', 'exclusive', '10 min');
is_idle('first', 'exclusive', 'a lease is idle');
foreach my $mode (sort keys %last)
{
	my $pid = $last{$mode}->pid;

	$last{$mode}->query("SET synchronous_commit = on; BEGIN; CREATE TABLE last_$mode ();"
		  . "SELECT redlock_acquire('last $mode', mode => '$mode', keep_idle => '10 min')");
	$last{$mode}->send('COMMIT');
	ok($host->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		"$mode: a session commits");
	kill 'STOP', $pid;
}
my $pid_file = $host->data_dir . '/postmaster.pid';
my ($postmaster) = split /\n/, slurp_file($pid_file);
kill 'INT', $postmaster;
wait_until(sub { key_count('redlock:first', @nodes) == 0 }, 'the server stops, and no lease is idle');
is(key_count("redlock:last $_", @nodes), 3, "$_: the session has its lease yet") foreach sort keys %last;
kill 'CONT', $_->pid foreach values %last;
wait_until(sub { key_count("redlock:last $_", @nodes) == 0 }, "$_: it does not become idle when the session releases it", 20)
  foreach sort keys %last;
wait_until(sub { !-e $pid_file }, 'the server has stopped', 20);
$host->restart;    # the test's modules must not stop it again
$_->quit foreach $s, $b, values %last;

done_testing();

# The view redlock_stat_resources: how sessions acquired, awaited and held each lock; and the sums
# in redlock_stats.
#
# Protects from: an acquisition, a refusal or a time not counted, counted twice, or counted in
# another column; counts lost with the broker; counts left by a reset; a table growing with the
# number of names; a busy lock pushed out by many locks with a single use, also a lock that readers
# join; sums that lack the locks without a row, or that a reset of the rows changes.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\ndeadlock_timeout = '10ms'";
my $host  = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $other = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($s, $t, $u) = map { session($host) } 1 .. 3;
my $b = session($other);

my $counts = 'from_nodes, handed_over, from_idle, joined, refused, timed_out, lost, deadlocks';

# waits and holds that the histograms count
my $times = join ', ', map { "(SELECT sum(n) FROM unnest($_) n)" } qw(wait_histogram hold_histogram);

sub stat_of
{
	my ($resource, $columns, $permit) = @_;
	my $is = defined $permit ? "permit = $permit" : 'permit IS NULL';
	return $host->safe_psql('postgres',
		"SELECT $columns FROM redlock_stat_resources WHERE resource = '$resource' AND $is");
}

sub is_counted
{
	my ($resource, $expected, $what, $permit) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(stat_of($resource, "$counts, $times", $permit), $expected, $what);
}

sub queued
{
	my ($name, $number) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM redlock_locks WHERE resource = '$name' AND state = 'queued'") == $number;
		},
		"$number in the queue for $name");
}

# ---- acquisitions ----

is(stat_of('own', 'true'), '', 'no row before the first use');
foreach (1 .. 3)
{
	$s->query("SELECT redlock_acquire('own', scope => 'session')");
	$s->query("SELECT redlock_acquire('own', scope => 'session')");    # the same acquisition
	$s->query('SELECT redlock_release_all()');
}
is_counted('own', '3|0|0|0|0|0|0|0|3|3', 'three grants by the nodes, three holds');
is( stat_of('own', 'max_wait_time > 0 AND total_wait_time BETWEEN max_wait_time AND 3 * max_wait_time
		AND max_hold_time > 0 AND total_hold_time BETWEEN max_hold_time AND 3 * max_hold_time'), 't',
	'sums and maxima fit together');
$s->query("SELECT redlock_acquire('own', scope => 'session')");
is_counted('own', '4|0|0|0|0|0|0|0|4|3', 'a hold counts when it is over');
$s->query('SELECT redlock_release_all()');

$s->query("SELECT redlock_acquire('passed', scope => 'session')");
$t->send("SELECT redlock_acquire('passed', scope => 'session')");
queued('passed', 1);
$s->query("SELECT redlock_release('passed')");
$t->result;
$t->query("SELECT redlock_release('passed')");
is_counted('passed', '1|1|0|0|0|0|0|0|2|2', 'a hand-over');

$s->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '1 min'), redlock_release('idle')")
  foreach 1 .. 5;
is_counted('idle', '1|0|4|0|0|0|0|0|5|5', 'an idle lease is taken four times');

$s->query("SELECT redlock_acquire('shared', scope => 'session', mode => 'shared')");
$_->query("SELECT redlock_acquire('shared', scope => 'session', mode => 'shared')") foreach $t, $u;
is(stat_of('shared', $counts), '1|0|0|2|0|0|0|0', 'two readers join the first');
$_->query("SELECT redlock_release('shared')") foreach $s, $t, $u;
is_counted('shared', '1|0|0|2|0|0|0|0|1|1', 'one hold, from the first reader to the last');

$s->query("SELECT redlock_acquire('kept', scope => 'session', mode => 'shared', keep_idle => '1 min'), redlock_release('kept')")
  foreach 1 .. 3;
is_counted('kept', '1|0|2|0|0|0|0|0|3|3', 'an idle shared lease is taken twice');

my $token = $s->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '1 min')");
$t->query("SELECT redlock_release('detached', $token)");
is_counted('detached', '1|0|0|0|0|0|0|0|1|1', 'a detached lock');

$s->query("SELECT redlock_acquire_all(ARRAY['one', 'two'], scope => 'session'), redlock_release_all()");
is_counted($_, '1|0|0|0|0|0|0|0|1|1', "of two locks at once: $_") foreach qw(one two);

# ---- tries and waits in vain ----

$s->query("SELECT redlock_acquire('here', scope => 'session')");
$b->query("SELECT redlock_acquire('there', scope => 'session')");
is($t->query("SELECT redlock_try('$_')"), 'f', "$_ is taken") foreach qw(here there);
is($t->run("SELECT redlock_acquire('$_', wait => '50 ms')")->{state}, '55P03', "a wait for $_ in vain")
  foreach qw(here there);
is($t->query("SELECT redlock_try('$_', wait => '50 ms')"), 'f', "a try for $_ that waits")
  foreach qw(here there);
is_counted('here', '1|0|0|0|1|2|0|0|3|0', 'refused and timed out in the local queue');
is_counted('there', '0|0|0|0|1|2|0|0|2|0', 'and by another host');
is(stat_of('there', 'total_wait_time >= 100'), 't', 'the time of both waits');
is($t->query("SELECT redlock_try_all(ARRAY['free', 'here'])"), 'f', 'two locks at once');
is(stat_of('here', 'refused'), 2, 'the taken one counts');
is($t->run("SELECT redlock_acquire('bad', ttl => '-1 s')")->{state}, '22023', 'a wrong argument');
is(stat_of('bad', 'true'), '', 'is nothing to count');
$_->query('SELECT redlock_release_all()') foreach $s, $b;

$s->query("SELECT redlock_acquire('short', scope => 'session', hold_at_most => '50 ms')");
wait_until(sub { stat_of('short', 'lost') == 1 }, 'a lost lease');
$s->run("SELECT redlock_release('short')");
is_counted('short', '1|0|0|0|0|0|1|0|1|1', 'which is released later');

$s->query("SELECT redlock_acquire('x', scope => 'session')");
$t->query("SELECT redlock_acquire('y', scope => 'session')");
$s->send("SELECT redlock_acquire('y', scope => 'session')");
queued('y', 1);
$t->send("SELECT redlock_acquire('x', scope => 'session')");
wait_until(sub { $s->done || $t->done }, 'a deadlock');
{
	my ($victim, $winner) = $s->done ? ($s, $t) : ($t, $s);

	is($victim->result->{state}, '40P01', 'ends with an error');
	$victim->query('SELECT redlock_release_all()');
	$winner->result;
	$winner->query('SELECT redlock_release_all()');
	is($host->safe_psql('postgres', 'SELECT sum(deadlocks) FROM redlock_stat_resources'), 1, 'which counts once');
}

# ---- permits ----

$_->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)") foreach $s, $t;
is($u->query("SELECT redlock_try('pool', permits => 2)"), 'f', 'no third permit');
is($u->run("SELECT redlock_acquire('pool', wait => '50 ms', permits => 2)")->{state}, '55P03', 'nor in time');
$_->query("SELECT redlock_release('pool')") foreach $s, $t;
is(stat_of('pool', "$counts, $times", 1), '1|0|0|0|0|0|0|0|1|1', 'the first permit');
is(stat_of('pool', "$counts, $times", 2), '1|0|0|0|0|0|0|0|1|1', 'the second permit');
is_counted('pool', '0|0|0|0|1|1|0|0|1|0', 'refusals count for the lock');

# ---- sums ----

# Compares the sums in redlock_stats with the rows.
sub is_summed
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($host->safe_psql('postgres', <<~SQL), 't|t|t|t|t|t', $what);
		SELECT s.joined = r.joined, s.tries_refused = r.refused, s.timed_out = r.timed_out, s.deadlocks = r.deadlocks,
		       abs(s.total_wait_time - r.waited) < 0.01, abs(s.total_hold_time - r.held) < 0.01
		  FROM redlock_stats s,
		       (SELECT sum(joined) AS joined, sum(refused) AS refused, sum(timed_out) AS timed_out,
		               sum(deadlocks) AS deadlocks, sum(total_wait_time) AS waited, sum(total_hold_time) AS held
		          FROM redlock_stat_resources) r
		SQL
	return;
}

is_summed('redlock_stats has the sums of all rows');
is($host->safe_psql('postgres', 'SELECT joined, tries_refused, timed_out, deadlocks, total_wait_time > 200, total_hold_time > 0
		FROM redlock_stats'), '2|4|5|1|t|t', 'which are not zero');

# ---- the broker, and the reset ----

{
	my $all = 'SELECT md5(string_agg(r::text, $$,$$ ORDER BY r::text)) FROM redlock_stat_resources r';
	my $before = $host->safe_psql('postgres', $all);

	replace_broker($host);
	wait_nodes_ready($host, 3);
	is($host->safe_psql('postgres', $all), $before, 'the next broker keeps the counts');
}
$s->query("SELECT redlock_acquire('over a reset', scope => 'session', keep_idle => '1 min')");
$host->safe_psql('postgres', 'SELECT redlock_stat_reset()');
is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_stat_resources'), 0, 'a reset leaves no row');
$s->query("SELECT redlock_release('over a reset')");
$s->query("SELECT redlock_acquire('over a reset', scope => 'session', keep_idle => '1 min')");
is_counted('over a reset', '0|0|1|0|0|0|0|0|1|1', 'the same lease counts on, from zero');
is(stat_of('over a reset', 'stats_since > pg_postmaster_start_time()'), 't', 'since the reset');
$s->query("SELECT redlock_release('over a reset')");

{
	my $since = 'SELECT stats_reset FROM redlock_stats';
	my $nodes = "SELECT string_agg(stats_reset::text, ' ') FROM redlock_stat_nodes";
	my ($stats_before, $nodes_before) = map { $host->safe_psql('postgres', $_) } $since, $nodes;
	my $sums = 'SELECT granted, taken_idle, total_wait_time > 0, total_hold_time > 0 FROM redlock_stats';

	is($host->safe_psql('postgres', $sums), '0|1|t|t', 'the reset of all resets the sums');
	$host->safe_psql('postgres', "SELECT redlock_stat_reset('resources')");
	is($host->safe_psql('postgres', $sums), '0|1|t|t', 'a reset of the rows keeps the sums');
	is($host->safe_psql('postgres', $nodes), $nodes_before, 'and the nodes');
	$host->safe_psql('postgres', "SELECT redlock_stat_reset('nodes')");
	isnt($host->safe_psql('postgres', $nodes), $nodes_before, 'a reset of the nodes');
	is($host->safe_psql('postgres', $since), $stats_before, 'keeps the sums');
	$s->query("SELECT redlock_acquire('row', scope => 'session'), redlock_release('row')");
	$host->safe_psql('postgres', "SELECT redlock_stat_reset('stats')");
	is($host->safe_psql('postgres', "SELECT granted, handed_over, taken_idle, recalled, total_wait_time, total_hold_time FROM redlock_stats"),
		'0|0|0|0|0|0', 'a reset of the sums');
	is(stat_of('row', 'from_nodes'), 1, 'keeps the rows');
	isnt($host->safe_psql('postgres', $since), $stats_before, 'and the view has its time');
	is($s->run("SELECT redlock_stat_reset('locks')")->{state}, '22023', 'there is no other target');
	$s->query('SELECT redlock_stat_reset()');
}

# ---- many names ----

$t->query("SELECT redlock_acquire('read', scope => 'session', mode => 'shared')");
$s->query("SELECT redlock_acquire('read', scope => 'session', mode => 'shared'), redlock_release('read')") foreach 1 .. 40;

$s->query(<<~SQL);
	DO \$\$
	BEGIN
	    FOR n IN 1 .. 40 LOOP
	        PERFORM redlock_acquire('busy ' || n % 4, scope => 'session');
	        PERFORM redlock_release_all();
	    END LOOP;
	    FOR n IN 1 .. 3000 LOOP
	        PERFORM redlock_acquire('once ' || n, scope => 'session');
	        PERFORM redlock_release_all();
	    END LOOP;
	END \$\$
	SQL
is( $host->safe_psql('postgres',
		"SELECT count(*) BETWEEN 1000 AND 1024, sum(from_nodes) FILTER (WHERE resource LIKE 'busy%') FROM redlock_stat_resources"),
	't|40', 'the table has its bound, and the busy locks with all their counts');
is(stat_of('read', 'from_nodes, joined'), '1|40', 'a reader that joins is a use, too');
$t->query("SELECT redlock_release('read')");
is($host->safe_psql('postgres', 'SELECT s.total_wait_time > r.waited AND s.total_hold_time > r.held
		FROM redlock_stats s, (SELECT sum(total_wait_time) AS waited, sum(total_hold_time) AS held FROM redlock_stat_resources) r'), 't',
	'the sums have the locks that have lost their rows, too');

done_testing();

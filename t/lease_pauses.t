# A holder paused for longer than its lease must not commit.  Nodes without their data must not
# grant a second lease.
#
# Protects from (invariants 1 and 8): lost updates by a sleeping holder: SIGSTOP stops its backend,
# its broker or its server until another host has taken the lock and done the work; a second holder
# after all nodes restart empty at once, or after a flush of a majority, while the first lease is
# valid; a documented recipe for data elsewhere losing an update.
#
# Each host takes the lock; the data is in the database of host A.  `bench/run pauses` counts lost
# updates with pauses at random moments.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep time);

# hold_at_most ends the lease of a paused session; else the broker renews the lease as long as the
# process exists.
my $short = "ttl => '500 ms', hold_at_most => '400 ms'";

my @nodes = redis_nodes(5, persist => 0);
my $conf  = "redlock.ttl = '1s'\nredlock.max_ttl = '3s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);

$host_a->safe_psql(
	'postgres', <<~'SQL');
	CREATE TABLE account (id int PRIMARY KEY, amount int NOT NULL,
	                      token bigint NOT NULL DEFAULT 0);
	INSERT INTO account VALUES (1, 0);
	CREATE TABLE work (what text);

	-- redlock_fence for those whose lock is another session's, or another host's
	CREATE FUNCTION pass_fence(name text, mine bigint) RETURNS void
	LANGUAGE plpgsql AS $$
	BEGIN
	    INSERT INTO redlock_fences AS f VALUES (name, mine, clock_timestamp())
	        ON CONFLICT (resource) DO UPDATE
	        SET token = EXCLUDED.token, passed_at = EXCLUDED.passed_at
	        WHERE f.token <= EXCLUDED.token;
	    IF NOT FOUND THEN
	        RAISE 'stale token' USING ERRCODE = '40001';
	    END IF;
	END $$;
	SQL

my $session_a = session($host_a);
my $session_b = session($host_b);
my $data_a    = session($host_a);    # the data, as seen by A's job, without a lock
my $data_b    = session($host_a);    # and by B's
$_->query("SET client_min_messages = error") for $session_a, $session_b;

# ---- stopping ----

my %stopped;

sub stop
{
	kill 'STOP', @_;
	@stopped{@_} = ();
	return;
}

sub go_on
{
	my @pids = keys %stopped;

	kill 'CONT', @pids;
	delete @stopped{@pids};
	return;
}

# a stopped server cannot shut down
END { go_on(); }

# Stops the postmaster first, so no new process starts.
sub stop_server
{
	my ($host) = @_;
	my $postmaster = (split /\n/, slurp_file($host->data_dir . '/postmaster.pid'))[0];

	stop($postmaster);
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $parent) =
		  (eval { slurp_file($stat) } // '') =~ /^(\d+) \(.*\) \S (\d+)/s or next;

		stop($pid) if $parent == $postmaster;
	}
	return;
}

# ---- lost updates ----

my $committed = 0;

sub amount { return $data_b->query('SELECT amount FROM account'); }

# B's job takes the lock as soon as possible, adds 1, and keeps the lock.
sub do_job_of_b
{
	my (%options) = @_;

	$session_b->query('BEGIN');
	my $token = $session_b->query("SELECT redlock_acquire('job', wait => '50 s')");
	$data_b->query('BEGIN');
	$data_b->query("SELECT pass_fence('job', $token)") if $options{fence};
	my $amount = amount();
	$data_b->query("UPDATE account SET amount = $amount + 1");
	$data_b->query('COMMIT');
	$committed++;
	return;
}

# Returns whether A's update was refused, and how many updates were lost.
sub outcome
{
	my ($committed_a, $result) = @_;
	my $lost = $committed + $committed_a - amount();

	$committed = amount();
	return { refused => !$committed_a, lost => $lost, result => $result };
}

# A's job reads, is stopped, and adds 1 after B has added 1.  In odd rounds the test sends A's
# commands during the stop.

# The writing session holds the lock, so its commit is guarded.
sub round_guarded
{
	my ($round) = @_;

	$session_a->query('BEGIN');
	$session_a->query("SELECT redlock_acquire('job', $short)");
	my $amount = $session_a->query('SELECT amount FROM account');
	my $update = "UPDATE account SET amount = $amount + 1";

	stop($session_a->pid);
	$session_a->send("$update;\nCOMMIT") if $round % 2;
	do_job_of_b();
	go_on();
	$session_a->query($update) unless $round % 2;
	my $result = $round % 2 ? $session_a->result : $session_a->run('COMMIT');
	my $told   = outcome($result->{state} eq '', $result);
	$session_b->query('COMMIT');
	return $told;
}

# A session other than the writer holds the lock, as with any lock service.  The last check finds
# the lease valid.
sub round_elsewhere
{
	my ($round, $fence) = @_;
	my ($token, $amount);

	# on a busy machine the lease may have ended: repeat
	wait_until(
		sub {
			$token = $session_a->query("SELECT redlock_acquire('job', $short, scope => 'session')");
			$data_a->query('BEGIN');
			$amount = $data_a->query('SELECT amount FROM account');
			return 1 if $session_a->run("SELECT redlock_check('job')")->{state} eq '';
			$data_a->query('ROLLBACK');
			$session_a->query("SELECT redlock_release('job')");
			return 0;
		},
		"round $round: the lease is valid");
	my $write = "UPDATE account SET amount = $amount + 1;\nCOMMIT";
	$write = "SELECT pass_fence('job', $token);\n$write" if $fence;

	stop($data_a->pid);
	$data_a->send($write) if $round % 2;
	do_job_of_b(fence => $fence);
	go_on();
	my $result = $round % 2 ? $data_a->result : $data_a->run($write);
	my $told   = outcome($result->{state} eq '', $result);
	$session_a->query("SELECT redlock_release('job')");
	$session_b->query('COMMIT');
	return $told;
}

sub round_fenced { return round_elsewhere($_[0], 1); }
sub round_plain  { return round_elsewhere($_[0], 0); }

# Returns the number of refused commits and of lost updates.
sub rounds
{
	my ($number, $one) = @_;
	my ($refused, $lost) = (0, 0);

	foreach my $round (1 .. $number)
	{
		my $told = $one->($round);

		$refused++ if $told->{refused};
		$lost += $told->{lost};
		next unless $one == \&round_guarded && $told->{refused};
		my $result = $told->{result};
		like(
			"$result->{state} $result->{message}",
			qr/^40001 the lease on redlock "job" was lost/,
			"round $round: the error of the commit names the lease")
		  or diag($result->{err});
	}
	return ($refused, $lost);
}

foreach my $kind (
	[ 'the guard',                20, \&round_guarded, 1, 0 ],
	[ 'the fence alone',          3,  \&round_fenced,  1, 0 ],
	[ 'a lease, checked before',  3,  \&round_plain,   0, 1 ])
{
	my ($what, $number, $one, $refused, $lost) = @$kind;

	is(join(' ', rounds($number, $one)),
		join(' ', $number * $refused, $number * $lost),
		"$what: refused commits and lost updates of $number rounds");
}

# ---- data elsewhere: the steps of docs/how-to/one-database-or-several.md with the token, in each
# order ----

my %recipe = (
	'token with the write' => {
		read  => 'SELECT amount FROM account',
		write => 'UPDATE account SET amount = $amount + 1, token = $token WHERE token <= $token RETURNING 1',
	},
	'token first' => {
		read  => 'UPDATE account SET token = $token WHERE token <= $token RETURNING amount',
		write => 'UPDATE account SET amount = $amount + 1 WHERE token = $token RETURNING 1',
	});

# Holder A reads and writes (A1, A2); the next holder B does the same (B1, B2).  A does the steps
# before B1 under its lease, and the other steps after the end of the lease.  Returns the number of
# lost updates.
sub lost_in_order
{
	my ($recipe, $order) = @_;
	my ($before, $after) = $order =~ /^((?:A. )*)(.*)/;
	my %data = (A => $data_a, B => $data_b);
	my (%token, %amount);
	my $written = 0;
	my $first   = amount();

	my $steps = sub {
		foreach my $step (split ' ', $_[0])
		{
			my ($who, $what) = split //, $step;

			# no row: the holder is stale
			next if $what == 2 && $amount{$who} eq '';
			my $sql = $recipe->{ $what == 1 ? 'read' : 'write' };
			$sql =~ s/\$token/$token{$who}/g;
			$sql =~ s/\$amount/$amount{$who}/g;
			my $result = $data{$who}->query($sql);
			$amount{$who} = $result if $what == 1;
			$written++ if $what == 2 && $result ne '';
		}
	};

	$token{A} = $session_a->query("SELECT redlock_acquire('job', $short, scope => 'session')");
	$steps->($before);
	$token{B} = $session_b->query("SELECT redlock_acquire('job', wait => '50 s', scope => 'session')");
	$steps->($after);
	$session_a->query("SELECT redlock_release('job')");
	$session_b->query("SELECT redlock_release('job')");
	return $first + $written - amount();
}

my @orders = ('A1 A2 B1 B2', 'A1 B1 A2 B2', 'A1 B1 B2 A2', 'B1 A1 A2 B2', 'B1 A1 B2 A2', 'B1 B2 A1 A2');
foreach my $name (sort keys %recipe)
{
	my %lost = map { $_ => lost_in_order($recipe{$name}, $_) } @orders;
	my @losing = grep { $lost{$_} } @orders;

	is("@losing", $name eq 'token first' ? '' : 'A1 B1 A2 B2 B1 A1 A2 B2',
		"$name: orders of the steps in which an update is lost");
}
$committed = amount();

# ---- a pause that ends in time ----

sub is_refused
{
	my ($result, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '40001', "$what: the commit is refused");
	like($result->{message}, qr/^the lease on redlock "job" was lost/, "$what: it names the lease");
	is($data_b->query('SELECT count(*) FROM work'), '0', "$what: nothing was written");
	is($session_a->query("SELECT redlock_try('job')"), 'f', "$what: B still holds the lock");
	$session_b->query('COMMIT');
	return;
}

# The broker renews the lease of a stopped backend, as the process exists; other sessions wait.
$session_a->query("BEGIN; SELECT redlock_acquire('job'); INSERT INTO work VALUES ('a')");
stop($session_a->pid);
my $renewed = $data_b->query('SELECT renewed FROM redlock_stats');
ok( $host_a->poll_query_until('postgres', "SELECT renewed >= $renewed + 6 FROM redlock_stats"),
	'the lease of a stopped backend is renewed');
is($session_b->query("SELECT redlock_try('job')"), 'f', 'another host does not get the lock of the stopped backend');
go_on();
is($session_a->run('COMMIT')->{state}, '', 'and it may commit');
$data_b->query('DELETE FROM work');

# ---- the broker, and the whole server ----

sub take_lock_and_work
{
	$session_a->query("BEGIN; SELECT redlock_acquire('job'); INSERT INTO work VALUES ('a')");
	return;
}

sub b_takes_lock
{
	$session_b->query('BEGIN');
	$session_b->query("SELECT redlock_acquire('job', wait => '50 s')");
	return;
}

foreach my $round (1 .. 3)
{
	take_lock_and_work();
	stop(broker_pid($host_a));
	b_takes_lock();
	go_on() if $round == 1;
	my $result = $session_a->run('COMMIT');
	go_on();
	is_refused($result, $round == 1 ? 'broker stopped' : 'broker stopped still');
}
foreach my $round (1 .. 3)
{
	take_lock_and_work();
	stop_server($host_a);
	b_takes_lock();
	$session_a->send('COMMIT') if $round % 2;
	go_on();
	is_refused($round % 2 ? $session_a->result : $session_a->run('COMMIT'), 'server stopped');
}

# ---- redlock_fence, and a holder paused inside its transaction ----

# A holder that passes the fence locks its row of redlock_fences until the end of the transaction.
# A newer holder waits for the row.
$session_a->query("BEGIN; SELECT redlock_acquire('job', $short)");
my $amount = $session_a->query("SELECT redlock_fence('job') * 0 + amount FROM account");
stop($session_a->pid);
$session_b->query('BEGIN');
my $token = $session_b->query("SELECT redlock_acquire('job', wait => '50 s')");
$data_b->query('BEGIN');
$data_b->send("SELECT pass_fence('job', $token)");
ok( $host_a->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . $data_b->pid),
	'a newer holder waits at the fence for the transaction of the older one');
go_on();
$session_a->query("UPDATE account SET amount = $amount + 1");
is($session_a->run('COMMIT')->{state}, '40001', 'which is refused');
is($data_b->result->{state}, '', 'and lets the newer one pass');
$data_b->query('COMMIT');
$session_b->query('COMMIT');

# ---- all nodes restart empty at once ----

# Tries the lock on B until the condition holds.  Returns how often each state or result came, and
# the last error's detail.
sub try_until
{
	my ($condition) = @_;
	my %told;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	do
	{
		my $result = $session_b->run("SELECT redlock_try('job', scope => 'session')");

		$told{ $result->{state} || $result->{out} }++;
		$told{detail} = $result->{detail} if $result->{state} ne '';
		sleep 0.05;
	} until $condition->() || time > $until;
	return \%told;
}

sub quarantined
{
	my ($host) = @_;
	return psql_result($host,
		"SELECT count(*) FROM redlock_nodes WHERE state = 'quarantined'")->{out};
}

# The ttl is longer than the start of the nodes, so the lease stays valid.
wait_nodes_ready($_, 5) for $host_a, $host_b;
$session_a->query("BEGIN; SELECT redlock_acquire('job', ttl => '3 s'); INSERT INTO work VALUES ('a')");
$token = $session_a->query("SELECT redlock_token('job')");
$_->kill9 for @nodes;
$_->start for @nodes;
my $told = try_until(
	sub {
		$host_b->safe_psql('postgres',
			"SELECT count(*) = 5 FROM redlock_nodes WHERE state = 'quarantined'") eq 't';
	});
wait_until(sub { key_count('redlock:job', @nodes) == 5 },
	'the holder creates its key again on all nodes that restarted empty');
my $more = try_until(sub { quarantined($host_b) == 0 });
ok(!$told->{t} && !$more->{t}, 'the other host did not get the lock');
ok($more->{'08006'}, 'it was told that there is no quorum');
like($more->{detail}, qr/restarted at [-0-9]+ [:0-9]+ \S+ and may have forgotten leases: its appendonly is no \(in quarantine for/,
	'and why');
wait_nodes_ready($_, 5) for $host_a, $host_b;
is($session_b->query("SELECT redlock_try('job')"), 'f', 'when they vote again it is held');
is($session_a->query("SELECT redlock_token('job')"), $token, 'the holder has the token that it had');
is($session_a->query("SELECT redlock_check('job') > '0'"), 't', 'and a valid lease');
is($session_a->run('COMMIT')->{state}, '', 'it commits');
$session_b->query('BEGIN');
my $newer = $session_b->query("SELECT redlock_acquire('job', wait => '50 s')");
cmp_ok($newer, '>', $token, 'B gets the lock afterwards, with a newer token');
$session_b->query('COMMIT');

# ---- a majority is flushed ----

wait_nodes_ready($_, 5) for $host_a, $host_b;
$session_a->query("BEGIN; SELECT redlock_acquire('job', ttl => '2 s')");
$token = $session_a->query("SELECT redlock_token('job')");
is($session_b->query("SELECT redlock_try('job')"), 'f', 'B wants the lock');
$_->cli('FLUSHALL') for @nodes[ 0 .. 2 ];
$told = try_until(sub { quarantined($host_b) == 3 });
$more = try_until(sub { quarantined($host_b) == 0 });
ok(!$told->{t} && !$more->{t}, "a majority is flushed: B never gets it");
ok($more->{'08006'}, 'B is told that there is no quorum');
like($more->{detail}, qr/data was lost/, 'and why');
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'the holder created its key again');
is($session_a->query("SELECT redlock_token('job')"), $token, 'its token is the same');
is($session_a->run('COMMIT')->{state}, '', 'it commits');
ok($session_b->run("SELECT redlock_acquire('job', wait => '50 s')")->{out} > $token,
	'B gets it afterwards');

$_->quit for $session_a, $session_b, $data_a, $data_b;
done_testing();

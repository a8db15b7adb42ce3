# Deadlocks across hosts: probes follow the waits from server to server.
#
# Protects from: a cycle of waits without an end; a cycle costing more than one session its
# transaction; an error in a session outside of the cycle; a message without the whole cycle;
# forged probes of strangers.

use strict;
use warnings;

use IO::Socket::INET;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\ndeadlock_timeout = '200ms'";
my %host  = map { $_ => redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);
$_->safe_psql('postgres', 'CREATE TABLE accounts (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO accounts VALUES (1), (2)')
  foreach values %host;

sub waiting
{
	my ($host) = @_;
	return $host{$host}->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'");
}

# Returns the results of the sessions' queries.  Each session rolls back when its query is done.
sub all_results
{
	my (@sessions) = @_;
	my @results;
	my %open = map { $_ => 1 } 0 .. $#sessions;

	while (%open)
	{
		wait_until(sub { grep { $sessions[$_]->done } keys %open }, 'somebody goes on', 60) or last;
		foreach my $i (grep { $sessions[$_]->done } sort keys %open)
		{
			$results[$i] = $sessions[$i]->result;
			$sessions[$i]->query('ROLLBACK');
			delete $open{$i};
		}
	}
	return @results;
}

# Each session first runs its queries `has`.  Then the sessions send their queries `wants`, one
# after another; with `after`, once a session of the same host waits.  Returns the result of each
# session.
sub deadlock
{
	my (@steps) = @_;
	my @sessions = map { session($host{ $_->{host} }) } @steps;

	foreach my $i (0 .. $#steps)
	{
		$sessions[$i]->query('BEGIN');
		$sessions[$i]->query($_) foreach @{ $steps[$i]{has} };
	}
	foreach my $i (0 .. $#steps)
	{
		wait_until(sub { waiting($steps[$i]{host}) >= 1 }, 'others wait before', 30) if $steps[$i]{after};
		$sessions[$i]->send($steps[$i]{wants});
	}
	my @results = all_results(@sessions);
	$results[$_]{pid} = $sessions[$_]->pid foreach 0 .. $#steps;
	$_->quit foreach @sessions;
	return @results;
}

sub lock_of { return "SELECT redlock_acquire('$_[0]')"; }

# redis-cli cannot send a NUL.
sub publish
{
	my ($node, @words) = @_;
	my $socket = IO::Socket::INET->new("127.0.0.1:" . $node->port) or die "$!";

	print $socket "*3\r\n", map { '$' . length($_) . "\r\n$_\r\n" } 'PUBLISH', @words;
	like(scalar <$socket>, qr/^:1\r/, 'the host hears a probe that is forged');
	return;
}

# Checks that a single session fails with a deadlock, and all other sessions get their locks.
# Returns the failed result.
sub one_victim
{
	my ($what, @results) = @_;
	my @victims = grep { ($_->{state} // '') eq '40P01' } @results;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @victims, 1, "$what: one victim");
	is(scalar(grep { !$_->{state} } @results), @results - 1, "$what: the others go on")
	  or diag join ', ', map { $_->{state} // 'ok' } @results;
	return $victims[0];
}

# ---- two hosts ----

my @two = (
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('x') });
my @results = deadlock(@two);
my $victim = one_victim('two hosts', @results);
like($victim->{message}, qr/^deadlock detected while waiting for redlock "[xy]"$/, 'the message');
my %pid = map { $two[$_]{host} => $results[$_]{pid} } 0 .. 1;
foreach ([ 'a', 'y', 'b' ], [ 'b', 'x', 'a' ])
{
	my ($from, $what, $to) = @$_;

	like($victim->{detail},
		qr/Process $pid{$from} of server $from waits for redlock "$what"; blocked by process $pid{$to} of server $to\./,
		"its detail has the wait on $from");
}
is(() = $victim->{detail} =~ /waits for/g, 2, 'and no more');

sub deadlocks_counted
{
	my $sum = 0;

	$sum += $_->safe_psql('postgres', "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") foreach values %host;
	return $sum;
}
wait_until(sub { deadlocks_counted() > 0 }, 'it is counted');
is(deadlocks_counted(), 1, 'once');

# ---- three hosts ----

@results = deadlock(
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('z') },
	{ host => 'c', has => [ lock_of('z') ], wants => lock_of('x') });
$victim = one_victim('three hosts', @results);
is(() = $victim->{detail} =~ /waits for redlock/g, 3, 'its detail has three waits');

# ---- a row lock in the middle ----

@results = deadlock(
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => 'UPDATE accounts SET n = 1 WHERE id = 1' },
	{ host => 'b', has => ['UPDATE accounts SET n = 2 WHERE id = 1'], wants => lock_of('x') });
$victim = one_victim('a row lock', @results);
like($victim->{detail}, qr/waits for transaction \d+; blocked by process $results[2]{pid} of server b/,
	'its detail tells the row lock');

# ---- a worker of a parallel query in the middle ----

$host{b}->safe_psql('postgres', <<'SQL');
CREATE FUNCTION count_accounts() RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE
	AS 'BEGIN RETURN (SELECT count(*) FROM accounts); END';
CREATE TABLE one AS SELECT 1;
SQL
@results = deadlock(
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y') },
	{
		host  => 'b',
		has   => [ lock_of('y'), "SELECT set_config(name, 'on', true) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')" ],
		wants => 'SELECT count_accounts() FROM one'
	},
	{ host => 'b', has => ['LOCK TABLE accounts'], wants => "SELECT redlock_acquire('x', wait => '20 s')" });
$victim = one_victim('a worker', @results);
like($victim->{detail}, qr/Process $results[1]{pid} of server b waits for relation \d+ of database \d+; blocked by process $results[2]{pid} of server b/,
	'its detail tells the lock that the worker waits for');

# ---- behind another session at the gate ----

@results = deadlock(
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('x') },
	{ host => 'b', has => [ lock_of('z') ], wants => lock_of('x') });
one_victim('with a bystander', @results);
is($results[2]{state}, '', 'which is not the bystander');

# A session has waited for long at the front of its queue.  Another wait behind this session closes
# a cycle.  The next probe of the session in front returns before the cycle's probes have left.  One
# of the two hosts has the larger number, so the test tries both ways.
sub set_deadlock_timeout
{
	my ($value) = @_;

	foreach (values %host)
	{
		$_->append_conf('postgresql.conf', "deadlock_timeout = '$value'");
		$_->reload;
	}
	return;
}

set_deadlock_timeout('1s');
foreach my $way ([ 'a', 'b' ], [ 'b', 'a' ])
{
	my ($here, $there) = @$way;
	my @all = map { session($host{$_}) } $here, $here, $there;
	my ($first, $behind, $other) = @all;

	if ($here eq 'b')
	{
		# after the loss of a lease, the name has another gate
		$first->query("SET redlock.on_loss = 'error'");
		$first->query("SELECT redlock_acquire('y$here', scope => 'session', hold_at_most => '50 ms')");
		wait_until(sub { $host{$here}->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'y$here'") eq 'lost' }, 'a lease is lost');
		$first->query('SELECT redlock_release_all()');
	}
	$_->query('BEGIN') foreach @all;
	$behind->query(lock_of("x$here"));
	$other->query(lock_of("y$here"));
	$first->send(lock_of("y$here"));
	sleep 4; # time is the subject: the session sends many probes
	$behind->send(lock_of("y$here"));
	$other->send(lock_of("x$here"));
	@results = all_results(@all);
	$results[$_]{pid} = $all[$_]->pid foreach 0 .. 2;
	$victim = one_victim("behind who has waited for long on $here", @results);
	is($results[0]{state}, '', 'the session with the long wait is not the victim');
	my $pid = $results[1]{pid};
	like($victim->{detail}, qr/^Process $pid of server $here waits for redlock "y$here"/m, 'what is waited for at a gate is known');
	$_->quit foreach @all;
}

set_deadlock_timeout('200ms');

# Both sessions of the cycle queue behind sessions that ask the nodes for the locks.
@results = deadlock(
	{ host => 'a', has => [ lock_of('u') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('v') ], wants => lock_of('x') },
	{ host => 'a', has => [ lock_of('x') ], wants => lock_of('y'), after => 1 },
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('x'), after => 1 });
cmp_ok(scalar(grep { $_->{state} eq '40P01' } @results), '>', 0, 'a cycle behind two others is broken');

# ---- shared locks ----

sub shared_lock_of { return "SELECT redlock_acquire('$_[0]', mode => 'shared')"; }

@results = deadlock(
	{ host => 'a', has => [ shared_lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('x') });
$victim = one_victim('one that is shared', @results);
like($victim->{detail}, qr/server b waits for redlock "x"; blocked by process $results[0]{pid} of server a\./, 'the detail names the reader');

# A reader waits for the writer's lock, beside readers of the same server and of another server.
my @readers = map { session($host{$_}) } qw(a c);
$_->query('BEGIN; ' . shared_lock_of('x')) foreach @readers;
@results = deadlock(
	{ host => 'a', has => [ shared_lock_of('x') ], wants => lock_of('y') },
	{ host => 'b', has => [ lock_of('y') ], wants => "SELECT redlock_acquire('x', wait => '20 s')" });
is(scalar(grep { ($_->{state} // '') eq '40P01' } @results), 1, 'a reader among several readers: one victim');
$_->query('ROLLBACK') foreach @readers;

# Two more sessions of the reader's server: a reader of many locks, but not yet of x, waits at the
# gate of another lock; a reader of x has left the gate of x.
my ($early, $keeper, $gone) = map { session($host{a}) } 1 .. 3;
$keeper->query("SELECT redlock_acquire('kept', scope => 'session')");
$early->query("SELECT count(redlock_acquire('many ' || i, scope => 'session', mode => 'shared')) FROM generate_series(1, 300) i");
$gone->query("SELECT redlock_acquire('x', scope => 'session', mode => 'shared')");
$gone->query('BEGIN; SELECT pg_advisory_unlock_all()');
$early->send("SELECT redlock_acquire_all(ARRAY['x', 'kept'], mode => 'shared', wait => '60 s')");
wait_until(sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND NOT granted") == 1 },
	'one waits at the gate of another lock');
@results = deadlock(
	{ host => 'a', has => [ shared_lock_of('x') ], wants => "SELECT redlock_acquire('y', wait => '20 s')" },
	{ host => 'b', has => [ lock_of('y') ], wants => "SELECT redlock_acquire('x', wait => '20 s')" });
is(scalar(grep { ($_->{state} // '') eq '40P01' } @results), 1, 'with others at the gate, or away from it: one victim');
$gone->query('ROLLBACK; SELECT redlock_release_all()');
$keeper->query("SELECT redlock_release('kept')");
$early->result;
$_->quit foreach $early, $keeper, $gone;

# A new reader waits for a writer, the writer for a reader, and the reader for the new reader.
my $writer = session($host{c});
my $reader = session($host{a});
$reader->query('BEGIN; ' . shared_lock_of('x'));
$writer->query('BEGIN');
$writer->send(lock_of('x'));
wait_until(sub { waiting('c') == 1 }, 'a writer waits for the reader');
my $third = session($host{b});
$third->query('BEGIN; ' . lock_of('y'));
$third->send(shared_lock_of('x'));
wait_until(sub { waiting('b') == 1 }, 'and another reader');
$reader->send(lock_of('y'));
one_victim('behind a writer', all_results($reader, $third, $writer));
$_->quit foreach $writer, $reader, $third;

# The writer has stopped waiting, so no session is in a cycle, though the nodes hold new readers
# back for a while.
$reader = session($host{a});
my ($leaving, $next) = map { session($host{$_}) } qw(c b);
$reader->query('BEGIN; ' . shared_lock_of('x'));
$next->query('BEGIN; ' . lock_of('y'));
$reader->send(lock_of('y'));
wait_until(sub { waiting('a') == 1 }, 'the reader waits');
is($leaving->run("SELECT redlock_acquire('x', wait => '150 ms')")->{state}, '55P03', 'a writer waits for a moment');
$next->send(shared_lock_of('x'));
@results = all_results($next, $reader);
is_deeply([ map { $_->{state} } @results ], [ '', '' ], 'nobody is ended who is in no cycle any more');
$_->quit foreach $reader, $leaving, $next;

# One wait closes several cycles: all readers wait for the writer's other lock.
@results = deadlock((map { { host => $_, has => [ shared_lock_of('x') ], wants => lock_of('y') } } qw(a a c c)),
	{ host => 'b', has => [ lock_of('y') ], wants => lock_of('x') });
cmp_ok(scalar(grep { $_->{state} eq '40P01' } @results), '>', 0, 'many cycles by one wait are broken');

# A reader waits for the request of another reader of the same server.
my $holder_of_x = session($host{b});
$holder_of_x->query('BEGIN; ' . lock_of('x'));
@readers = map { session($host{a}) } 1 .. 2;
$_->query('BEGIN') foreach @readers;
$readers[1]->query(lock_of('y'));
$readers[0]->send(shared_lock_of('x'));
wait_until(sub { waiting('a') == 1 }, 'the first reader asks');
my $at_gate = "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND mode = 'ShareLock' AND granted";
$readers[1]->send(shared_lock_of('x'));
wait_until(sub { $host{a}->safe_psql('postgres', $at_gate) == 2 }, 'another waits with it');
$holder_of_x->send(lock_of('y'));
@results = all_results($holder_of_x, @readers);
one_victim('with another that asks', @results);
is($results[1]{state}, '', 'the reader outside of the cycle is not the victim');
$_->quit foreach $holder_of_x, @readers;

# A session may not join the readers of its server, since a writer of another host waits.
my $other_writer = session($host{b});
@readers = map { session($host{a}) } 1 .. 2;
$_->query('BEGIN') foreach $other_writer, @readers;
$readers[0]->query(shared_lock_of('x'));
$readers[1]->query(lock_of('y'));
$other_writer->send(lock_of('x'));
wait_until(sub { waiting('b') == 1 }, 'a writer waits for the reader of host a');
$readers[1]->send(shared_lock_of('x'));
wait_until(sub { $host{a}->safe_psql('postgres', $at_gate) == 2 }, 'another waits to join');
$readers[0]->send(lock_of('y'));
@results = all_results($other_writer, @readers);
one_victim('that wants to join', @results);
is($results[0]{state}, '40P01', 'the one that waits for another server');
$_->quit foreach $other_writer, @readers;

# ---- no cycle ----

my $holder = session($host{a});
my $waiter = session($host{b});
my $behind = session($host{c});
$holder->query('BEGIN');
$holder->query(lock_of('x'));
$waiter->query('BEGIN');
$waiter->query(lock_of('y'));
$waiter->send(lock_of('x'));
$behind->send(lock_of('y'));

# A stranger forges probes: for the wait of another session, malformed, too long.
my $channel = "redlock:\0host:" . substr($nodes[0]->cli('GET', 'redlock:x'), 43, 16);
my $steps = join '', map { sprintf("%016x\0%d\0%d\0%d\0%s\0%s\0", $_, $_, 1, $_, "server $_", 'what') } 1 .. 32;
foreach my $probe ("probe\0redlock:x\0001\0" . $steps, "probe\0redlock:x\0001\0$steps$steps",
	"probe\0redlock:x\0001\0", "probe\0", "probe", "probe\0redlock:x\000-1\0$steps",
	"probe\0redlock:x\0001\0" . "zz\0" x 6, "probe\0nobody's\0001\0$steps")
{
	publish($_, $channel, $probe) foreach @nodes;
}
wait_until(sub { $host{b}->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'x' AND now() - since > interval '2 s'") == 1 },
	'they wait for long', 30);
ok(!$waiter->done && !$behind->done, 'nobody is told of a deadlock where there is none');
$holder->query('COMMIT');
ok(!$waiter->result->{state}, 'who waited gets the lock');
$waiter->query('COMMIT');
ok(!$behind->result->{state}, 'the session behind the waiter gets the lock, too');
$behind->query('COMMIT');

# A session waits at the gate of y, so is no reader of x yet.  The session is a reader of a lock
# whose hash ends in the same six bits as the hash of x.
my $twin = $host{a}->safe_psql('postgres',
	"SELECT min(n) FROM (SELECT 'twin ' || i AS n FROM generate_series(1, 1000) i) t WHERE (hashtextextended(n, 0) # hashtextextended('x', 0)) & 63 = 0");
my ($shares, $has_y, $wants_both, $has_z) = map { session($host{$_}) } qw(a a a b);
my @heard = map { listener($_, 'redlock:?host:*') } @nodes;
$_->query('BEGIN') foreach $shares, $has_y, $wants_both, $has_z;
$shares->query(shared_lock_of('x'));
$wants_both->query(shared_lock_of($twin));
$has_y->query(lock_of('y'));
$has_z->query(lock_of('z'));
$wants_both->send("SELECT redlock_acquire_all(ARRAY['x', 'y'], mode => 'shared')");
wait_until(sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'y' AND state = 'queued'") == 1 },
	'one waits for the second of two locks');
$has_y->send(lock_of('z'));
$has_z->send(lock_of('x'));

# Returns the number of the waiter's last probe.  Forwarded probes have more steps, so do not
# count.
sub probes
{
	my ($lock) = @_;
	my @numbers = sort { $a <=> $b } map { $_->text =~ /^probe\x00redlock:$lock\x00(\d+)\x00\w{16}(?:\x00[^\x00\n]*){5}\x00$/mg } @heard;

	return $numbers[-1] // 0;
}
wait_until(sub { probes('x') >= 10 && probes('z') >= 10 || $has_y->done || $has_z->done }, 'others ask ten times whether they wait in a circle');
ok(!$has_y->done && !$has_z->done, 'and do not');
$shares->query('COMMIT');
foreach my $session ($has_z, $has_y, $wants_both)
{
	is($session->result->{state}, '', 'each gets its lock when the one before goes');
	$session->query('COMMIT');
}
$_->quit foreach @heard, $shares, $has_y, $wants_both, $has_z;

done_testing();

# A lost lease does not block its own server.
#
# Protects from: a loser, idle in its transaction, keeping out the server's other sessions, waiting
# or new; two queues for a name, or two holders in a server; a loser's late end taking the lock from
# a later holder; losses under other names sending a waiter to the end of its queue again and again,
# and hiding a deadlock of the waiter.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.node_timeout = '300ms'");
my $admin = session($host);

sub states
{
	my ($name) = @_;
	return $admin->query("SELECT string_agg(state, ' ' ORDER BY since) FROM redlock_locks WHERE resource = '$name' AND state <> 'releasing'");
}

sub wait_states
{
	my ($name, $states, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { states($name) eq $states }, $description) or diag(states($name));
	return;
}

# Pauses all nodes until the lease on this name is lost.
sub lose
{
	my ($name) = @_;

	$_->pause foreach @nodes;
	wait_until(sub { states($name) !~ /held/ }, "the lease on $name is lost");
	$_->resume foreach @nodes;
	wait_nodes_ready($host, 3);
	return;
}

sub blockers
{
	my ($session) = @_;
	return $admin->query('SELECT pg_blocking_pids(' . $session->pid . ')');
}

# ---- new and waiting sessions, with each on_loss and scope of the loser ----

foreach my $name ('cancel transaction', 'error transaction', 'cancel session', 'error call')
{
	my ($on_loss, $scope) = split ' ', $name;
	my ($loser, $waiter, $second) = map { session($host) } 1 .. 3;

	$loser->query("SET redlock.on_loss = '$on_loss'");
	$admin->query('SELECT pg_advisory_lock(1)');
	if ($scope eq 'call')
	{
		$loser->send("DO \$\$ BEGIN PERFORM redlock_acquire('$name', scope => 'call', ttl => '2 s'); "
			  . "PERFORM pg_advisory_xact_lock(1); END \$\$");
		wait_states($name, 'held', "$name: it is held");
	}
	else
	{
		$loser->query("BEGIN; CREATE TEMP TABLE written (); SELECT redlock_acquire('$name', scope => '$scope', ttl => '2 s')");
	}
	my $token = $admin->query("SELECT token FROM redlock_locks WHERE resource = '$name'");
	# without a wait, the session would ask for two node_timeouts only: the nodes are paused for longer
	$waiter->send("SELECT redlock_acquire('$name', scope => 'session', ttl => '60 s', wait => '2 min')");
	wait_states($name, 'held queued', "$name: another waits");

	lose($name);
	my $newer = $waiter->result->{out};
	cmp_ok($newer, '>', $token, "$name: who waited gets the lock, with a newer token");
	is(states($name), 'lost held', "$name: while the loser has not let go");
	is($admin->query("SELECT redlock_try('$name')"), 'f', "$name: a third does not get it");

	# a second waiter queues behind the new holder
	$second->send("SELECT redlock_acquire('$name', scope => 'session', ttl => '60 s')");
	wait_states($name, 'lost held queued', "$name: who comes next is queued");
	is(blockers($second), '{' . $waiter->pid . '}', "$name: behind the holder, not the loser");
	is($waiter->query("SELECT redlock_release('$name')"), 't', "$name: the holder releases");
	cmp_ok($second->result->{out}, '>', $newer, "$name: the next one has it");

	# the loser ends
	$admin->query('SELECT pg_advisory_unlock(1)');
	my $result = $scope eq 'call' ? $loser->result : $loser->run('COMMIT');
	is($result->{state}, '40001', "$name: the loser can't commit");
	$loser->query("SET client_min_messages = error; SELECT redlock_release('$name')") if $scope eq 'session';
	wait_states($name, 'held', "$name: what it leaves is the holder's lease");
	is($second->query("SELECT redlock_check('$name') > '0'"), 't', "$name: which is valid");
	wait_until(sub { key_count("redlock:$name", @nodes) == 3 }, "$name: and on all nodes");
	is($loser->query("SELECT redlock_try('$name')"), 'f', "$name: the loser asks like anyone");
	is($second->query("SELECT redlock_release('$name')"), 't', "$name: the holder releases");
	is($loser->query("SET client_min_messages = error; SELECT redlock_try('$name')"), 't', "$name: and the loser has it again");
	$_->quit foreach $loser, $waiter, $second;
	wait_until(sub { $admin->query("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") eq '0' }, "$name: no gate is left");
}

# ---- several losers of a name end in any order ----

my @losers = map { session($host) } 1 .. 3;
foreach my $loser (@losers)
{
	$loser->query("BEGIN; SELECT redlock_acquire('again', ttl => '2 s')");
	lose('again');
}
is(states('again'), 'lost lost lost', 'three have lost a lease on the same name');
my $holder = session($host);
my $token = $holder->query("SELECT redlock_acquire('again', scope => 'session', ttl => '60 s')");
$_->query('ROLLBACK') foreach @losers[ 1, 2, 0 ];
wait_states('again', 'held', 'they end');
is($holder->query("SELECT redlock_token('again') = $token AND redlock_check('again') > '0'"), 't', 'the holder has lost nothing');
is($admin->query("SELECT redlock_try('again')"), 'f', 'others are kept out');

# The holder leaves the gate for a moment.  The name in the lease table still keeps other sessions
# out, without a request to the nodes.
$holder->query('BEGIN; SELECT pg_advisory_unlock_all()');
my $refused = $admin->query('SELECT refused FROM redlock_stats');
is($admin->query("SELECT redlock_try('again')"), 'f', 'others are kept out without a gate');
is($admin->query('SELECT refused FROM redlock_stats'), $refused, '... and no node is asked');
$holder->query('COMMIT');
is($admin->query('SELECT locks FROM redlock_stats'), '1', 'one lock is counted');
$holder->query("SELECT redlock_release('again')");
$_->quit foreach @losers, $holder;

# ---- losses under another name in the waiter's hash bucket ----

{
	my ($first, $waiter, $loser) = map { session($host) } 1 .. 3;
	my $lost = sub { $admin->query('SELECT lost FROM redlock_stats') };
	my $other = $admin->query("SELECT 'n' || i FROM generate_series(1, 100000) i "
		  . "WHERE hashtextextended('n' || i, 0) & 255 = hashtextextended('cycle', 0) & 255 LIMIT 1");

	$first->query("SET deadlock_timeout = '1 h'; SELECT redlock_acquire('cycle', scope => 'session', ttl => '60 s')");
	$waiter->query("SET deadlock_timeout = '3 s'; SELECT pg_advisory_lock(2)");
	$loser->query("SET redlock.on_loss = 'error'; SET client_min_messages = error");
	$loser->query("SELECT redlock_try('$other')"); # the transaction of a session's first lock counts as a transaction with effects
	repeat($loser, "PERFORM redlock_acquire('$other', scope => 'session', hold_at_most => '100 ms'); "
		  . "PERFORM pg_sleep(0.2), redlock_release('$other')");
	$first->send('SELECT pg_advisory_lock(2)');
	my $before = $lost->();
	$waiter->send("SELECT redlock_acquire('cycle', wait => '20 s')");
	is($waiter->result->{state}, '40P01', "a deadlock is found while a lease on $other is lost again and again");
	cmp_ok($lost->() - $before, '>=', 3, 'as it was');
	end_repeats($host);
	$loser->result;
	$waiter->query('SELECT pg_advisory_unlock(2)');
	$first->result;
	$_->quit foreach $first, $waiter, $loser;
}

# ---- a try of a reader after a loss under another name ----

{
	my ($reader, $loser, $try) = map { session($host) } 1 .. 3;
	my $other = $admin->query("SELECT 'n' || i FROM generate_series(1, 100000) i "
		  . "WHERE hashtextextended('n' || i, 0) & 255 = hashtextextended('long', 0) & 255 LIMIT 1");

	$reader->query("SELECT redlock_acquire('long', mode => 'shared', ttl => '60 s', scope => 'session')");
	$loser->query("SET redlock.on_loss = 'error'; SELECT redlock_acquire('$other', ttl => '2 s', scope => 'session')");
	lose($other);
	is(states('long'), 'held', 'a reader still has its lease');
	is($try->query("SELECT redlock_try('long', mode => 'shared')"), 't', 'another reader gets the lock by a try');
	is($try->query("SELECT redlock_try_all(ARRAY['before', 'long'], mode => 'shared')"), 't', '... also as one of several');
	is($try->query("SELECT redlock_try('long')"), 'f', '... and no writer');
	is($reader->query("SELECT redlock_release('long')"), 't', 'the reader releases');
	is($try->query("SELECT redlock_try('long')"), 't', '... so a writer gets the lock');
	$_->quit foreach $reader, $loser, $try;
}

# ---- a waiter loses another lock ----

foreach my $on_loss ('cancel', 'terminate')
{
	my ($first, $waiter) = map { session($host) } 1 .. 2;
	$first->query("BEGIN; SELECT redlock_acquire('one', ttl => '20 s')");
	$waiter->query("SET redlock.on_loss = '$on_loss'; SELECT redlock_acquire('two', scope => 'session', hold_at_most => '1 s')");
	my $result = $waiter->run("SELECT redlock_acquire('one')");
	my $told = $on_loss eq 'cancel' ? '57014 canceling statement' : '57P01 terminating connection';
	is("$result->{state} $result->{message}", qq($told because the lease on redlock "two" was lost),
		"$on_loss: a waiter learns that it lost another lock");
	$_->quit foreach $first, $waiter;
}

$admin->quit;
done_testing();

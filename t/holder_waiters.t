# redlock_waiters tells which hosts wait for a lock, on the holder's host and on waiting hosts.
#
# Protects from: a waiting host, a reader, or a session at the gate of the holder's host left out; a
# session counted twice; a wait beginning anew when a session leaves the gate; rows kept back by a
# stopped host, a dead node or a stranger on the channel; a row from a malformed answer; questions
# stopping grants, or answered without a limit.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'";
my %host  = map { $_ => redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);
my %on    = map { $_ => session($host{$_}) } keys %host;
my %id    = map { $_ => host_id($host{$_}) } keys %host;
my $warns = qr/WARNING: +\w+: +not every host has told whether its sessions wait for redlock "job"/;

# The rows of redlock_waiters on a host, and the warnings.
sub ask
{
	my ($from, $name) = @_;
	my $sql = "SELECT cluster_name || ':' || mode || ':' || sessions FROM redlock_waiters('$name') ORDER BY cluster_name, mode";
	my $result = $on{$from}->run($sql);

	return (join(' ', split /\n/, $result->{out}), $result->{err});
}

sub waiters_are
{
	my ($name, $expected, $what, @from) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $from (@from ? @from : sort keys %host)
	{
		wait_until(sub { join('|', ask($from, $name)) eq "$expected|" }, "$what: $from tells the waiters of $name")
		  or diag(ask($from, $name));
	}
	return;
}

# Begins a wait on a host, and returns the session.
sub waiter
{
	my ($on, $name, $terms) = @_;
	my $session = session($host{$on});

	$session->send("SELECT redlock_acquire('$name', scope => 'session'" . ($terms ? ", $terms" : '') . ')');
	return $session;
}

sub now { return $on{a}->query('SELECT clock_timestamp()'); }

# Returns t if the longest wait on this host began before the given time.
sub waits_since
{
	my ($on, $name, $time) = @_;
	return $on{a}->query("SELECT waits >= statement_timestamp() - '$time'::timestamptz FROM redlock_waiters('$name') WHERE cluster_name = '$on'");
}

# Publishes words at a node; a word i is the number of the message.
sub publish
{
	my ($node, $channel, $times, @words) = @_;
	my $text = join ' .. ', map { $_ eq 'i' ? "string.format('%016x', i) .. '\\000'" : "'$_\\000'" } @words;

	return $node->cli('EVAL', "for i = 1, ARGV[1] do redis.call('PUBLISH', '$channel', $text) end", 0, $times);
}

# ---- nobody waits ----

waiters_are('job', '', 'a free lock');
$on{a}->query("SELECT redlock_acquire('job', scope => 'session')");
waiters_are('job', '', 'a held lock without waiters');
is($on{b}->run('SELECT redlock_waiters(NULL)')->{state}, '22004', 'a name is needed');

# ---- three hosts wait ----

my @b = waiter('b', 'job');
waiters_are('job', 'b:exclusive:1', 'the first waiter');
my $first = now();
push @b, waiter('b', 'job');
waiters_are('job', 'b:exclusive:2', 'a second waiter of its host');
my $second = now();
my @c = map { waiter('c', 'job') } 1 .. 2;
waiters_are('job', 'b:exclusive:2 c:exclusive:2', 'two hosts');
my @a = waiter('a', 'job');
waiters_are('job', 'a:exclusive:1 b:exclusive:2 c:exclusive:2', "the holder's host, too");
is($on{b}->query("SELECT count(*) FROM redlock_waiters('job') w JOIN redlock_hosts h USING (host_id) WHERE h.name = w.cluster_name AND w.host <> ''"), 3,
	'by the ids and names of redlock_hosts');
is(waits_since('b', 'job', $first), 't', 'the longest wait counts');
is(waits_since('b', 'other', $first), '', 'of this lock');
is($on{b}->query("SELECT count(*) FROM redlock_locks WHERE resource = 'job' AND state = 'held'"), 0, 'a question acquires nothing');
$host{b}->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $b[0]->pid . ')');
is($b[0]->result->{state}, '57014', 'the first waiter is cancelled');
waiters_are('job', 'a:exclusive:1 b:exclusive:1 c:exclusive:2', 'one waiter less');
is(waits_since('b', 'job', $second), 't', 'the wait at the gate counts for the next one');

# ---- readers, at the gate and in the gate ----

push @c, waiter('c', 'job', "mode => 'shared'");
waiters_are('job', 'a:exclusive:1 b:exclusive:1 c:exclusive:2 c:shared:1', 'a reader behind writers');
$on{a}->query("SELECT redlock_acquire('doc', scope => 'session')");
my @readers = map { waiter('b', 'doc', "mode => 'shared'") } 1 .. 2;
waiters_are('doc', 'b:shared:2', 'readers behind a writer');
$on{a}->query("SELECT redlock_release('doc')");
is($_->result->{state}, '', 'a reader has the lock') foreach @readers;
my @writers = (waiter('b', 'doc'), waiter('c', 'doc'));
waiters_are('doc', 'b:exclusive:1 c:exclusive:1', 'writers behind readers');
$_->query("SELECT redlock_release('doc')") foreach @readers;
each_in_turn("SELECT redlock_release('doc')", @writers);

# ---- a detached lock ----

my $token = $on{a}->query("SELECT redlock_acquire('away', scope => 'detached', hold_at_most => '10 min')");
my @behind = waiter('a', 'away');
waiters_are('away', 'a:exclusive:1', 'a session in the gate');
$on{a}->query("SELECT redlock_release('away', $token)");
is($behind[0]->result->{state}, '', 'it has the lock');

# ---- permits ----

$_->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)") foreach @on{qw(a b)};
my @wanting = map { waiter($_, 'pool', 'permits => 2') } qw(b b c);
waiters_are('pool', 'b:exclusive:2 c:exclusive:1', 'sessions that wait for permits');
$_->query("SELECT redlock_release('pool')") foreach @on{qw(a b)};
each_in_turn("SELECT redlock_release('pool')", @wanting);
waiters_are('pool', '', 'permits without waiters');

# ---- a stopped host; forged answers ----

my $rows   = 'a:exclusive:1 b:exclusive:1 c:exclusive:2 c:shared:1';
my $broker = broker_pid($host{c});
my $heard  = listener($nodes[0], 'redlock:job');
kill 'STOP', $broker;
my ($out, $err) = ask('a', 'job');
is($out, 'a:exclusive:1 b:exclusive:1', 'the rows of the other hosts come');
like($err, $warns, 'and a warning');
like($err, qr/DETAIL: +At a node, 1 of the subscribers that got the question did not answer within redlock.node_timeout, 2000 ms\./, 'which tells how many hosts are silent');

$heard->forget;
$on{a}->send("SELECT cluster_name, mode, sessions, waits FROM redlock_waiters('job') ORDER BY cluster_name, mode");
my $number;
wait_until(sub { ($number) = $heard->text =~ /^who waits\x00redlock:job\x00$id{a}\x00(\w{16})\x00/m }, 'the number of a question');
my $own = "redlock:\\000host:$id{a}";
publish($nodes[0], $own, 1, @$_)
  foreach ([''], ['waits'], [ 'waits', $number ], [ ('waits') x 999 ],
	[ 'waits', $number, '0' x 16, 'zero', 'x', 1, 1, 1, 1 ],
	[ 'waits', $number, 'feed' x 4, 'many', 'x', '99999999999', 1, 1, 1 ],
	[ 'waits', $number, 'feed' x 4, 'bell\\007', 'x', 1, 1, 1, 1 ],
	[ 'waits', $number, 'feed' x 4, 'long' x 17, 'x', 1, 1, 1, 1 ],
	[ 'waits', $number, 'feed' x 4, 'longer', 'x', 1, 1, 1, 1, 1 ],
	[ 'waits', '0' x 16, 'feed' x 4, 'unasked', 'x', 1, 1, 1, 1 ],
	[ 'waits', $number, 'feed' x 4, 'forged', 'x', 0, 0, 3, 2000000 ],
	[ 'waits', $number, 'feed' x 4, 'twice', 'x', 0, 0, 3, 2000000 ]);
my $result = $on{a}->result;
$result->{out} =~ s/\|[\d:.]+$//mg;
is(join(' ', split /\n/, $result->{out}), 'a|exclusive|1 b|exclusive|1 forged|shared|3', 'a malformed answer is no row, and a forged one is');

$heard->forget;
$on{a}->send("SELECT count(*), bool_or(cluster_name = 'a') FROM redlock_waiters('job')");
wait_until(sub { ($number) = $heard->text =~ /^who waits\x00redlock:job\x00$id{a}\x00(\w{16})\x00/m }, 'the number of another question');
publish($nodes[0], $own, 64, 'waits', $number, 'i', 'many', 'x', 0, 0, 3, 2000000);
$result = $on{a}->result;
is($result->{out}, '64|t', 'the rows of 64 hosts, the asked host among them');
like($result->{err}, qr/WARNING: +\w+: +more hosts wait for redlock "job" than redlock_waiters returns/, 'and a warning that there are more');
kill 'CONT', $broker;
waiters_are('job', $rows, 'the host goes on');

replace_broker($host{c});
waiters_are('job', $rows, 'and its next broker answers');

# ---- nodes are down ----

$heard->quit;

$nodes[1]->pause;
waiters_are('job', $rows, 'two of three nodes');
$nodes[2]->pause;
wait_until(sub { $on{a}->run("SELECT redlock_waiters('job')")->{state} eq '08006' }, 'without a quorum it is an error');
$_->resume foreach @nodes[ 1, 2 ];
wait_nodes_ready($_, 3) foreach values %host;
waiters_are('job', $rows, 'all nodes again');

# ---- forged questions ----

my $asker   = 'beefbeefbeefbeef';
my $answers = listener($nodes[0], "redlock:?host:$asker");
publish($nodes[0], 'redlock:job', 1, @$_)
  foreach (['who waits'], [ 'who waits', 'redlock:job' ], [ 'who waits', '', $asker, $asker ], [ 'who waits', 'x' x 999, $asker, $asker ],
	[ 'who waits', 'redlock:job', '0' x 16, $asker ], [ 'who waits', 'redlock:job', $asker, $asker, $asker ]);
publish($nodes[0], "redlock:\\000host:$id{b}", 1, 'who waits', 'redlock:job', $asker, 'i');
wait_until(sub { $answers->text =~ /^waits\x00\w{15}1\x00$id{b}\x00b\x00/m }, 'a host answers a stranger');
is(scalar(() = $answers->text =~ /^waits\x00/mg), 1, 'but not a malformed question');
publish($nodes[0], 'redlock:job', 10000, 'who waits', 'redlock:job', $asker, 'i');
$on{a}->query("SELECT redlock_release('job')");
each_in_turn("SELECT redlock_release('job')", @a, @b[1 .. 1], @c);
publish($nodes[0], "redlock:\\000host:$asker", 1, 'end');
wait_until(sub { $answers->text =~ /^end\x00/m }, 'all answers are heard');
cmp_ok(scalar(() = $answers->text =~ /^waits\x00/mg), '<', 20000, 'it does not answer each of very many questions');
waiters_are('job', '', 'nobody waits any more');

# ---- rights ----

$on{a}->query('CREATE ROLE anybody');
$on{a}->query('SET ROLE anybody');
is($on{a}->query("SELECT count(*) FROM redlock_waiters('job')"), 0, 'each role may ask');

$_->quit foreach values %on, @a, @b, @c, @readers, @writers, @behind, @wanting;
$answers->quit;
done_testing();

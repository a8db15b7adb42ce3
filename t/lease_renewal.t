# The broker renews a lease while the holder lives.  When renewals fail, the holder learns of the
# loss, and its transaction does not commit.
#
# Protects from: two holders after the first ttl; a holder going on without its lock; a log full
# of repetitions.
#
# Absolute times are the subject: the ttl is 2 s.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $session_a = session($host_a);
my $session_b = session($host_b);

# ---- renewal ----

$session_a->query("SELECT redlock_acquire('session', scope => 'session')");
$session_a->query("BEGIN; SELECT redlock_acquire('transaction')");
$session_a->send('SELECT pg_sleep(10)');
my ($granted, $looks) = (0, 0);
my $end = time + 10;
while (time < $end)
{
	$granted += grep { $_ eq 't' } $session_b->query("SELECT redlock_try('session')"),
	  $session_b->query("SELECT redlock_try('transaction')");
	$looks++;
}
is($granted, 0, "locks with a ttl of 2 s were never granted elsewhere in 10 s ($looks looks)");
is($session_a->result->{state}, '', 'the statement of the holder was not disturbed');
is($session_a->query("SELECT redlock_check('transaction') BETWEEN '0.1 s' AND '2 s'"),
	't', 'the lease is valid, within its ttl');
is($session_a->query("SELECT redlock_check('session') BETWEEN '0.1 s' AND '2 s'"), 't', 'both are');
cmp_ok($session_a->query('SELECT renewed FROM redlock_stats'), '>=', 8, 'they were renewed');
is($session_a->run('COMMIT')->{state}, '', 'the transaction commits');
$session_a->query("SELECT redlock_release('session')");
foreach my $name (qw(session transaction))
{
	wait_until(sub { $session_b->query("SELECT redlock_try('$name')") eq 't' },
		"\"$name\" is free afterwards");
}

# ---- many leases are renewed together ----

sub calls { return $nodes[0]->cli('INFO', 'commandstats') =~ /^cmdstat_evalsha:calls=(\d+)/m ? $1 : 0; }

my $many = 300;
$session_a->query('SET redlock.max_locks_per_session = 1000000');
$session_a->query("SELECT count(redlock_acquire('many ' || n, scope => 'session', ttl => '9 s')) "
	  . "FROM generate_series(1, $many) n");
# The test stops the broker until all leases are due, whenever granted.
my $broker = broker_pid($host_a);
kill 'STOP', $broker;
my $renewed = $session_a->query('SELECT renewed FROM redlock_stats');
my $calls   = calls();
wait_until(sub { $session_a->query("SELECT max(valid_for) < '5.9 s' FROM redlock_locks") eq 't' },
	'many leases are due for renewal', 30);
kill 'CONT', $broker;
wait_until(sub { $session_a->query('SELECT renewed FROM redlock_stats') >= $renewed + $many },
	'they are renewed', 30);
$renewed = $session_a->query('SELECT renewed FROM redlock_stats') - $renewed;
$calls = calls() - $calls;
cmp_ok($calls, '<=', $renewed / 4, "$renewed renewals took a node $calls calls");
is($session_a->query('SELECT redlock_release_all()'), $many, 'they are released');

# ---- loss ----

$host_a->safe_psql('postgres', 'CREATE TABLE work (what text)');

# Sessions that lose their locks at once: by name, the on_loss and the command of each.  Each
# session takes a lock at both scopes, and writes a row.
my %loser = (
	'cancel, busy'    => { on_loss => 'cancel', busy => 'SELECT pg_sleep(120)' },
	'cancel, idle'    => { on_loss => 'cancel' },
	'error, busy'     => { on_loss => 'error', busy => 'SELECT pg_advisory_lock(1)' },
	'error, idle'     => { on_loss => 'error' },
	'terminate, busy' => { on_loss => 'terminate', busy => 'SELECT pg_sleep(120)' },
	'terminate, idle' => { on_loss => 'terminate' });
my ($s, $result);

sub is_lost
{
	my ($result, $name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '40001', $description);
	like($result->{message}, qr/^the lease on redlock "$name" was lost/, "$description: the message names it");
}

my $lost = $host_a->safe_psql('postgres', 'SELECT lost FROM redlock_stats');
$session_a->query('SELECT pg_advisory_lock(1)');
foreach my $name (sort keys %loser)
{
	$s = $loser{$name}{session} = session($host_a);
	$s->query("SET redlock.on_loss = $loser{$name}{on_loss}");
	$s->query("SELECT redlock_acquire('s, $name', scope => 'session')");
	$s->query("BEGIN; SELECT redlock_acquire('t, $name'); INSERT INTO work VALUES ('$name')");
}
$loser{$_}{session}->send($loser{$_}{busy}) foreach grep { $loser{$_}{busy} } sort keys %loser;
$_->kill9 for @nodes[ 0 .. 2 ];

# sessions without a signal at the loss
foreach my $name ('cancel, idle', 'error, busy', 'error, idle')
{
	$host_a->poll_query_until('postgres',
		"SELECT count(*) = 2 FROM redlock_locks WHERE state = 'lost' AND resource LIKE '_, $name'")
	  or die "the leases are not lost: $name";
}

# cancel: the running statement ends
$s = $loser{'cancel, busy'}{session};
$result = $s->result;
is($result->{state}, '57014', 'cancel, busy: the statement is cancelled');
like($result->{message}, qr/the lease on redlock "[st], cancel, busy" was lost/, 'the message says why');
foreach my $node (@nodes[ 0 .. 2 ])
{
	like("$result->{detail}", qr/\Q@{[$node->address]}\E\b/, 'the detail names a node that is gone');
}
$s->query('ROLLBACK');
is_lost($s->run("SELECT redlock_check('s, cancel, busy')"), 's, cancel, busy', 'cancel, busy: a check fails');
is($s->query("SELECT redlock_release('s, cancel, busy')"), 'f', 'cancel, busy: there is nothing to release');

# cancel: nothing runs, so the commit fails
is_lost($loser{'cancel, idle'}{session}->run('COMMIT'), '[st], cancel, idle', 'cancel, idle: the commit fails');

# terminate: the session ends, busy or idle
$result = $loser{'terminate, busy'}{session}->result;
ok($result->{dead}, 'terminate, busy: the session ends');
like($result->{message}, qr/the lease on redlock "[st], terminate, busy" was lost/, 'its last message says why');
like($result->{hint}, qr/in a new session/, 'and what to do');
ok( $host_a->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $loser{'terminate, idle'}{session}->pid),
	'terminate, idle: the session ends');

# error: the running statement goes on, longer than the statements of other sessions
$s = $loser{'error, busy'}{session};
ok(!$s->done, 'error: the running statement goes on');
$session_a->query('SELECT pg_advisory_unlock(1)');
is($s->result->{state}, '', 'error: it is not disturbed');
$s->query('SAVEPOINT p');
is_lost($s->run("SELECT redlock_check('t, error, busy')"), 't, error, busy', 'error: a check fails');
$s->query('ROLLBACK TO p');
is_lost($s->run("SELECT redlock_acquire('t, error, busy')"), 't, error, busy', 'error: so does taking it once more');
$s->query('ROLLBACK TO p');
is_lost($s->run('COMMIT'), '[st], error, busy', 'error: and the commit');

# a loss at session scope without an open transaction disturbs nothing later
$s = $loser{'error, idle'}{session};
$s->query('ROLLBACK');
is($s->run('SELECT 1')->{out}, '1', 'a session without the lock can work');
is($s->query("SELECT redlock_release('s, error, idle')"), 'f', 'it releases nothing');

# An error by the first loss makes a session release its second lock, which then cannot be lost.
$lost = $host_a->safe_psql('postgres', 'SELECT lost FROM redlock_stats') - $lost;
cmp_ok($lost, '>=', 9, 'the losses are counted');
cmp_ok($lost, '<=', 12, 'each once');

$_->{session}->quit foreach values %loser;
$_->start for @nodes[ 0 .. 2 ];
wait_nodes_ready($_, 5) for $host_a, $host_b;
$session_b->query('BEGIN');
foreach my $name (sort keys %loser)
{
	foreach my $scope (qw(s t))
	{
		wait_until(sub { $session_b->query("SELECT redlock_try('$scope, $name')") eq 't' },
			"the other host gets the lock \"$scope, $name\"");
	}
}
$session_b->query('COMMIT');
is($host_a->safe_psql('postgres', 'SELECT count(*) FROM work'), '0', 'nothing was committed');

# A stranger writes its own keys at a majority.  The next renewal, a third of the ttl later, loses
# the lock, and the strange keys stay.
$s = session($host_a);
$s->query("SELECT redlock_acquire('t', scope => 'session', ttl => '9 s')");
wait_until(sub { key_count('redlock:t', @nodes) == 5 }, 'the key is on all nodes');
$_->cli('SET', 'redlock:t', 'somebody else') for @nodes[ 0, 1 ];
$renewed = $s->query('SELECT renewed FROM redlock_stats');
ok( $host_a->poll_query_until('postgres', "SELECT renewed > $renewed FROM redlock_stats"),
	'strange keys on a minority: the lease is renewed on the others');
is($s->query("SELECT redlock_check('t') > '0'"), 't', 'and valid');
$s->send('SELECT pg_sleep(120)');
$nodes[2]->cli('SET', 'redlock:t', 'somebody else');
my $set = time;
$result = $s->result;
cmp_ok(time - $set, '<', 6, 'strange keys on a majority: it is lost before its ttl is over');
is($result->{state}, '57014', 'strange keys on a majority: the statement is cancelled');
like($result->{message}, qr/the lease on redlock "t" was lost/, 'the message says why');
is( join(' ', sort $result->{detail} =~ /(\S+): another session took the lock there, or a session released the lock by force/g),
	join(' ', sort map { $_->address } @nodes[ 0 .. 2 ]),
	'the detail names these nodes');
is_lost($s->run("SELECT redlock_check('t')"), 't', 'strange keys: a check fails');
is($s->query("SELECT redlock_release('t')"), 'f', 'there is nothing to release');
wait_until(sub { key_count('redlock:t', @nodes[ 3, 4 ]) == 0 }, 'our keys are deleted', 5);
is($nodes[$_]->cli('GET', 'redlock:t'), 'somebody else', "the strange one is not ($_)") for 0 .. 2;
$_->cli('DEL', 'redlock:t') for @nodes;
$s->quit;

# Wherever the cancellation strikes, the message tells the reason: in a wait for a table lock while
# the statement is analyzed or executed, in EXPLAIN, in a utility statement.
$session_a->query('BEGIN; LOCK TABLE work');
my @statements = ('SELECT * FROM work', 'LOCK TABLE work', 'TRUNCATE work', 'COPY work TO STDOUT',
	'EXPLAIN (ANALYZE) SELECT pg_sleep(120)', 'DO $$ BEGIN PERFORM pg_sleep(120); END $$',
	'COPY (SELECT pg_sleep(120)) TO STDOUT');
my @sessions = map { session($host_a) } @statements;
foreach my $i (0 .. $#statements)
{
	$sessions[$i]->query("BEGIN; SELECT redlock_acquire('most $i', hold_at_most => '500 ms')");
	$sessions[$i]->send($statements[$i]);
}
foreach my $i (0 .. $#statements)
{
	$result = $sessions[$i]->result;
	is($result->{state}, '57014', "$statements[$i]: cancelled when the lease is lost");
	is($result->{message}, "canceling statement because the lease on redlock \"most $i\" was lost", 'the message says why');
	like($result->{detail}, qr/hold_at_most/, 'and the detail');
	$sessions[$i]->quit;
}
$session_a->query('ROLLBACK');

# other cancellations keep their own reasons
$s = session($host_a);
$s->query("SELECT redlock_acquire('most', scope => 'session', hold_at_most => '500 ms')");
wait_until(sub { $session_a->query("SELECT state FROM redlock_locks WHERE resource = 'most'") eq 'lost' },
	'a lease is lost while its session is idle');
$s->send('SELECT pg_sleep(120)');
wait_until(
	sub { $session_a->query("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = " . $s->pid) eq 't' },
	'later a person cancels a statement');
is($s->result->{message}, 'canceling statement due to user request', 'the message says so');
$s->quit;

my $log = slurp_file($host_a->logfile);
my $address = $nodes[0]->address;
like($log, qr/lease on redlock "[st], [^"]+" of process \d+ was lost/, 'the log names locks that were lost');
like($log, qr/\Q$address\E/, 'and the nodes');

# ---- many lost leases do not fill the log ----

# Returns the number of leases that the log names or counts.  The view has the same number.
sub logged
{
	my ($what, $number) = @_;
	my $text = slurp_file($host_a->logfile);
	my $sum = () = $text =~ /LOG:  lease on redlock "[^"]*" of process \d+ $what/g;

	$sum += $1 while $text =~ /$number/g;
	return $sum;
}

$many = 1000;
my $lines = () = slurp_file($host_a->logfile) =~ /LOG:  .*lease/g;
(my $unrenewed, $lost) = split /\|/, $session_a->query('SELECT unrenewed, lost FROM redlock_stats');
$session_a->query("SET redlock.on_loss = 'error'");
$session_a->query("SELECT count(redlock_acquire('many ' || n, scope => 'session', ttl => '5 s')) FROM generate_series(1, $many) n");
$_->pause foreach @nodes[ 0 .. 2 ];
ok( $host_a->poll_query_until(
		'postgres', "SELECT lost >= $lost + $many AND unrenewed >= $unrenewed + $many FROM redlock_stats"),
	'many leases are not renewed, and lost');
$_->resume foreach @nodes[ 0 .. 2 ];
# Up to ten seconds later the log sums up; see below.

# ---- messages about a node that failed long before ----

my $host_c = redlock_cluster('c', nodes => [ @nodes[ 0 .. 2 ] ], conf => "redlock.node_timeout = '8s'\nredlock.on_disagreement = warn");
$nodes[1]->kill9;
wait_until(
	sub { $host_c->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'backing off'") eq '1' },
	'a node fails');
$nodes[1]->start;
wait_nodes_ready($host_c, 3);
my $session_c = session($host_c);
$session_c->query("SELECT redlock_acquire('long before', scope => 'session', ttl => '1 s')");
$_->pause foreach @nodes[ 0 .. 2 ];
wait_until(sub { slurp_file($host_c->logfile) =~ /lease on redlock "long before" of process \d+ was lost/ },
	'a lease is lost, and no node has failed anew');
my ($reasons) = slurp_file($host_c->logfile) =~ /"long before" of process \d+ was lost\n.*DETAIL:  (.*)/;
is($reasons, join('; ', map { node_urls($_) =~ s{redis://}{}r . ': no answer yet' } @nodes[ 0 .. 2 ]) . '.',
	'the old failure is not the reason');
$_->resume foreach @nodes[ 0 .. 2 ];
$session_c->quit;
$host_c->stop;

# ---- many lost leases: the log ----

wait_until(
	sub {
		my $count = $session_a->query('SELECT unrenewed, lost FROM redlock_stats');
		return $count eq logged('was not renewed', qr/DETAIL:  Failed renewals: (\d+)/) . '|'
		  . logged('was lost', qr/LOG:  (\d+) more leases? on a? ?redlocks? (?:was|were) lost/);
	},
	'the log tells of each, one by one or in a sum');
$lines = (() = slurp_file($host_a->logfile) =~ /LOG:  .*lease/g) - $lines;
cmp_ok($lines, '<', $many / 10, "in few lines ($lines)");

$_->quit for $session_a, $session_b;

done_testing();

# redlock-exec ends its command before another session can get the lock, whatever stops or dies: the
# keeper, the front, the broker, the server, the nodes, the connection.
#
# Protects from: a command running on without the lock, since the process in charge is stopped,
# waits for an answer, or is dead; a lock released before the command has ended; TERM without KILL,
# or KILL without TERM while the lease is valid; a command of an inner redlock-exec outliving the
# outer lock; a wrong exit code; a session, a keeper or a command left behind.
#
# Another host waits for the lock, and notes the begin of its command.  The command of the first
# host notes when it was last alive.
#
# Takes over a minute.

use strict;
use warnings;

use ExecTest;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '3s'\nredlock.node_timeout = '200ms'\nrestart_after_crash = on";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $number = 0;

# Starts a run on A, and a waiting run on B.  The command of A survives TERM, unless `catch` names
# another signal.
sub start_runs
{
	my (%options) = @_;
	my $name = 'lock' . ++$number;
	my @more = @{ $options{arguments} // [] };
	my %runs = (name => $name);

	$runs{a} = exec_start($host_a, [ @more, $name ], beats("a_$name", $options{catch} // 'TERM'));
	wait_until(sub { beat_log("a_$name") =~ /^start/m }, 'the command of A runs');
	($runs{command}) = beat_log("a_$name") =~ /^start (\d+)/m;
	wait_until(sub { $runs{keeper} = $runs{a}->keeper }, 'its keeper is there');
	$runs{b} = exec_start($host_b, [ '--wait=1h', $name ], beats("b_$name"));
	ok($host_b->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE state = 'waiting' AND held_by <> ''"),
		'B waits for it');
	return %runs;
}

sub is_dead
{
	my ($pid) = @_;
	return !-e "/proc/$pid" || slurp_file("/proc/$pid/stat") =~ /\) Z /;
}

# Checks that B gets the lock, and only after the end of A's command.
sub in_turn
{
	my ($what, %runs) = @_;
	my $name = $runs{name};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { beat_log("b_$name") =~ /^start/m }, "$what: B gets the lock");
	ok(is_dead($runs{command}), 'the command of A has ended');
	cmp_ok(last_beat_us("a_$name"), '<', begin_us("b_$name"), 'before that of B began');
	stop_beats("b_$name", 0);
	is($runs{b}->code, 0, 'B ends well');
	return;
}

sub is_lost
{
	my ($what, $message, $signals, %runs) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($runs{a}->code, 123, "$what: lost");
	like($runs{a}->err, $message, 'with the reason');
	is(beat_log("a_$runs{name}") =~ s/^(?:begin|start).*\n//mgr, $signals, 'signals of the command');
	ok(is_dead($runs{keeper}), 'no keeper is left');
	return;
}

# ---- a process of redlock-exec stops or dies ----

my %runs = start_runs();
kill 'STOP', $runs{keeper};
in_turn('stopped keeper', %runs);
is_lost('stopped keeper', qr/did not confirm the lease in time/, "TERM\n", %runs);

%runs = start_runs();
kill 'KILL', $runs{keeper};
in_turn('dead keeper', %runs);
is_lost('dead keeper', qr/keeper of the lock died/, "TERM\n", %runs);

# The lease goes on: the keeper does its work.
%runs = start_runs();
kill 'STOP', $runs{a}->pid;
my ($beat, $checks) = (last_beat_us("a_$runs{name}"), 0);
my $valid = "SELECT count(*) = 1 FROM redlock_locks WHERE resource = '$runs{name}' AND state = 'held'"
  . " AND clock_timestamp() > since + 2 * ttl";
ok($host_a->poll_query_until('postgres', $valid), 'stopped front: A holds the lock for longer than two ttls');
wait_until(sub { last_beat_us("a_$runs{name}") > $beat }, 'the command goes on');
is(beat_log("b_$runs{name}"), '', 'B waits');
stop_beats("a_$runs{name}", 4);
wait_until(sub { is_dead($runs{command}) }, 'the command ends');
kill 'CONT', $runs{a}->pid;
is($runs{a}->code, 4, 'and the front has its exit code');
in_turn('stopped front', %runs);

# With a stopped front and without a lease the keeper ends the command.
%runs = start_runs();
kill 'STOP', $runs{a}->pid;
kill 'STOP', broker_pid($host_a);
in_turn('stopped front and broker', %runs);
kill 'CONT', $runs{a}->pid;
is_lost('stopped front and broker', qr/no quorum of nodes renewed the lease in time/, "TERM\n", %runs);
kill 'CONT', broker_pid($host_a);

%runs = start_runs();
kill 'KILL', $runs{a}->pid;
in_turn('dead front', %runs);
wait_until(sub { is_dead($runs{keeper}) }, 'dead front: the keeper ends');
is($runs{a}->code, 'signal 9', '... and its front was killed');

%runs = start_runs();
kill 'KILL', $runs{a}->pid, $runs{keeper};
in_turn('both dead', %runs);

# The group of the command has another member.
%runs = (name => 'group', a => exec_start($host_a, ['group'],
		[ 'sh', '-c', '"$@" & wait; wait', 'sh', @{ beats('a_group', 'TERM') } ]));
wait_until(sub { beat_log('a_group') =~ /^start/m }, 'a child of the command runs');
($runs{command}) = beat_log('a_group') =~ /^start (\d+)/m;
wait_until(sub { $runs{keeper} = $runs{a}->keeper }, 'its keeper is there');
$runs{b} = exec_start($host_b, [ '--wait=1h', 'group' ], beats('b_group'));
kill 'KILL', $runs{a}->pid;
in_turn('dead front, and a group', %runs);
unlike(beat_log('a_group'), qr/^TERM$/m, 'the child had no grace');

# The front is killed because it belongs to the group of another redlock-exec.
%runs = (a => exec_start($host_a, [ '--ttl=60s', 'outer' ],
		[ exec_program($host_a), '-d', $host_a->connstr('postgres'), '--ttl=60s', 'inner', '--',
			'sh', '-c', '"$@" & wait; wait', 'sh', @{ beats('a_inner', 'TERM') } ]));
wait_until(sub { beat_log('a_inner') =~ /^start/m }, 'a child of the command of an inner redlock-exec runs');
($runs{command}) = beat_log('a_inner') =~ /^start (\d+)/m;
$host_a->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM redlock_locks WHERE resource = 'outer'");
is($runs{a}->code, 123, 'the outer session is terminated: lost');
wait_until(sub { is_dead($runs{command}) }, 'the child of the inner command ends');
unlike(beat_log('a_inner'), qr/^TERM$/m, 'without a grace');
ok($host_a->poll_query_until('postgres', "SELECT count(*) = 0 FROM redlock_locks WHERE resource = 'inner'"), 'and the inner lock is free');

# ---- events after TERM ----

# An outage of the nodes makes redlock-exec end the commands.  The leases are still valid
# afterwards.
%runs = map { $_ => exec_start($host_a, [ '--ttl=30s', '--kill-after=10s', $_ ], beats("a_$_", 'TERM')) } qw(hasty slow);
foreach my $name (qw(hasty slow))
{
	wait_until(sub { beat_log("a_$name") =~ /^start/m }, "the command of $name runs");
	($runs{"command_$name"}) = beat_log("a_$name") =~ /^start (\d+)/m;
}
$_->pause foreach @nodes[ 0, 1 ];
my $near = "SELECT bool_and(valid_for < '14 s') FROM redlock_locks WHERE resource IN ('hasty', 'slow')";
ok($host_a->poll_query_until('postgres', $near), 'both leases near their end');
my $backend = $host_a->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = 'slow'");
kill 'STOP', $backend;
wait_until(sub { beat_log("a_$_") =~ /^TERM$/m }, "the command of $_ gets TERM") foreach qw(hasty slow);

# The server releases the lock: the rest of the grace is void.
$host_a->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM redlock_locks WHERE resource = 'hasty'");
wait_until(sub { is_dead($runs{command_hasty}) }, 'a terminated session: the command ends at once', 7);
is($runs{hasty}->code, 123, '... and was lost');

# A late answer of the server, with a long validity, does not put off KILL.
$_->resume foreach @nodes[ 0, 1 ];
ok($host_a->poll_query_until('postgres', "SELECT valid_for > '20 s' FROM redlock_locks WHERE resource = 'slow'"),
	'the lease is renewed');
kill 'CONT', $backend;
wait_until(sub { is_dead($runs{command_slow}) }, 'a late answer: the command ends soon after TERM', 16);
is($runs{slow}->code, 123, '... and was lost');
wait_nodes_ready($host_a, 3);

# ---- the command heeds TERM, or is stopped ----

%runs = start_runs(catch => 'USR1');
kill 'STOP', $runs{keeper};
is_lost('a command that heeds TERM', qr/did not confirm the lease in time/, '', %runs);
in_turn('a command that heeds TERM', %runs);

%runs = start_runs();
kill 'STOP', $runs{command}, $runs{keeper};
in_turn('a stopped command', %runs);
is_lost('a stopped command', qr/did not confirm the lease in time/, "TERM\n", %runs);

# ---- the server ----

# A stopped server renews no lease.
%runs = start_runs(arguments => ['--kill-after=0']);
my $postmaster = (split /\n/, slurp_file($host_a->data_dir . '/postmaster.pid'))[0];
my @processes = ($postmaster, split ' ', slurp_file("/proc/$postmaster/task/$postmaster/children"));
kill 'STOP', @processes;
in_turn('stopped server', %runs);
is_lost('stopped server, without a grace', qr/did not confirm the lease in time/, '', %runs);
kill 'CONT', @processes;

%runs = start_runs();
kill 'STOP', broker_pid($host_a);
in_turn('stopped broker', %runs);
is_lost('stopped broker', qr/no quorum of nodes renewed the lease in time;/, "TERM\n", %runs);
kill 'CONT', broker_pid($host_a);
wait_nodes_ready($host_a, 3);

%runs = start_runs();
$_->pause foreach @nodes[ 0, 1 ];
is_lost('no quorum', qr/no quorum of nodes renewed the lease in time;/, "TERM\n", %runs);
$_->resume foreach @nodes[ 0, 1 ];
in_turn('no quorum', %runs);
wait_nodes_ready($_, 3) foreach $host_a, $host_b;

# The server has released the lock: no grace.
%runs = start_runs();
$host_a->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM redlock_locks WHERE resource = '$runs{name}'");
is_lost('terminated session', qr/server ended the session: terminating connection/, '', %runs);
wait_until(sub { beat_log("b_$runs{name}") =~ /^start/m }, 'B gets the lock');
stop_beats("b_$runs{name}", 0);
is($runs{b}->code, 0, 'B ends well');

# The command ends by itself, before the keeper has read the server's last message.
%runs = start_runs(arguments => [ '--ttl=60s', '--kill-after=1s' ]);
kill 'STOP', $runs{keeper};
$host_a->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM redlock_locks WHERE resource = '$runs{name}'");
wait_until(sub { beat_log("b_$runs{name}") =~ /^start/m }, 'B gets the lock');
stop_beats("a_$runs{name}", 0);
wait_until(sub { is_dead($runs{command}) }, 'the command of A ends');
kill 'CONT', $runs{keeper};
is($runs{a}->code, 123, 'a session terminated before the end of the command: lost');
stop_beats("b_$runs{name}", 0);
is($runs{b}->code, 0, 'B ends well');

# A stranger overwrites the keys at the nodes.
%runs = start_runs();
$_->cli('SET', "redlock:$runs{name}", 'somebody else', 'PX', 3000) foreach @nodes;
is_lost('a lease that is lost early', qr/the lease was lost/, '', %runs);
in_turn('a lease that is lost early', %runs);

# A cancelled check says nothing about the lease.
%runs = start_runs();
foreach (1 .. 200)
{
	$host_a->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM redlock_locks WHERE resource = '$runs{name}'");
}
stop_beats("a_$runs{name}", 6);
is($runs{a}->code, 6, 'cancelled checks: the command goes on');
in_turn('cancelled checks', %runs);

# On a standby, recovery cancels statements with the SQLSTATE of a lost lease.
%runs = start_runs();
$host_a->safe_psql('postgres', <<'SQL');
CREATE SEQUENCE conflicts;
ALTER FUNCTION redlock_check(text) RENAME TO true_check;
CREATE FUNCTION redlock_check(resource text) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.conflicts') % 2 = 0 THEN
        RAISE 'canceling statement due to conflict with recovery' USING ERRCODE = '40001';
    END IF;
    RETURN public.true_check(resource);
END $$
SQL
ok($host_a->poll_query_until('postgres', 'SELECT last_value > 10 FROM conflicts'), 'conflicts of checks with recovery: the command goes on');
stop_beats("a_$runs{name}", 6);
is($runs{a}->code, 6, '... to its end');
in_turn('conflicts of checks with recovery', %runs);
$host_a->safe_psql('postgres', 'DROP FUNCTION redlock_check(text); ALTER FUNCTION true_check(text) RENAME TO redlock_check');

# The server answers by errors.
%runs = start_runs();
$host_a->safe_psql('postgres', 'ALTER FUNCTION redlock_check(text) RENAME TO true_check');
is_lost('checks that fail', qr/did not confirm the lease in time: function redlock_check.* does not exist; the process group of the command was ended/, "TERM\n", %runs);
$host_a->safe_psql('postgres', 'ALTER FUNCTION true_check(text) RENAME TO redlock_check');
in_turn('checks that fail', %runs);

# The connection goes through a proxy.  The proxy stops, or closes both ends.
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $proxy;

sub start_proxy
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 5, ReuseAddr => 1) or die $!;

	$proxy = fork // die "fork: $!";
	return if $proxy;
	$SIG{$_} = 'DEFAULT' foreach qw(TERM INT);
	my $client = $listener->accept;
	my $server = IO::Socket::UNIX->new(Peer => $host_a->host . '/.s.PGSQL.' . $host_a->port) or POSIX::_exit(1);
	my $select = IO::Select->new($client, $server);
	while (my @ready = $select->can_read)
	{
		foreach my $from (@ready)
		{
			sysread($from, my $bytes, 65536) or POSIX::_exit(0);
			syswrite $from == $client ? $server : $client, $bytes;
		}
	}
	POSIX::_exit(0);
}

my @by_proxy = (arguments => [ '-h', '127.0.0.1', '-p', $port ]);
start_proxy();
%runs = start_runs(@by_proxy);
kill 'STOP', $proxy;
is_lost('stopped proxy', qr/did not confirm the lease in time/, "TERM\n", %runs);
is(beat_log("b_$runs{name}"), '', 'the server still holds the lock');
kill 'KILL', $proxy;
waitpid $proxy, 0;
in_turn('stopped proxy', %runs);

start_proxy();
%runs = start_runs(@by_proxy, catch => 'USR1');
kill 'KILL', $proxy;
waitpid $proxy, 0;
is_lost('dead proxy', qr/the connection broke/, '', %runs);
wait_until(sub { beat_log("b_$runs{name}") =~ /^start/m }, 'B gets the lock');
stop_beats("b_$runs{name}", 0);
is($runs{b}->code, 0, 'B ends well');

# The locks of a killed session stay until their ttl is over.
%runs = start_runs();
kill 'KILL', $host_a->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = '$runs{name}'");
is_lost('killed session', qr/the connection broke/, "TERM\n", %runs);
in_turn('killed session', %runs);
$host_a->poll_query_until('postgres', 'SELECT true');
wait_nodes_ready($host_a, 3);

%runs = start_runs();
$host_a->stop('immediate');
in_turn('killed server', %runs);
is_lost('killed server', qr/the connection broke/, "TERM\n", %runs);
$host_a->start;
wait_nodes_ready($host_a, 3);

# ---- the end ----

# The command ends, then the server does not answer.
%runs = start_runs();
@processes = ($host_a->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = '$runs{name}'"));
kill 'STOP', @processes;
stop_beats("a_$runs{name}", 8);
is($runs{a}->code, 8, 'a release without an answer: the exit code is that of the command');
like($runs{a}->err, qr/did not confirm the release/, 'with a message');
kill 'CONT', @processes;
in_turn('a release without an answer', %runs);

is(session_count($_), 0, 'no session is left') foreach $host_a, $host_b;
is($_->safe_psql('postgres', 'SELECT count(*) FROM redlock_locks WHERE pid IS NOT NULL'), '0', 'and no lock')
  foreach $host_a, $host_b;

done_testing();

# The lease of a detached lock ends before the caller has the token.
#
# Protects from: a token given to a session when another host may hold the lock already: the session
# stalled between grant and detach, or the server stops.
#
# When the broker stops, it ends all detached locks.  The key of a detached lock shows the moment.
#
# Preloads test/hostile/stall.c into the server: the session stalls when it notes the time of the
# grant.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes   = redis_nodes(3);
my $library = preload('stall') // die 'no stall';
my $file    = PostgreSQL::Test::Utils::tempdir() . '/who';
my ($host, $session);

write_mapped($file, 0, 0);
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{STALL_FILE} = $file;
	$host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'");
}
my $other = redlock_cluster('b', nodes => \@nodes, conf => "redlock.ttl = '60s'");
my $b     = session($other);

sub stalls
{
	open my $in, '<:raw', $file or die "$file: $!";
	read $in, my $numbers, 2 * length pack('l!', 0);
	close $in;
	return (unpack 'l!2', $numbers)[1] == 1;
}

# The session waits for a lock of the other host, and stalls at the grant.
sub stall_at_grant
{
	my ($name, $call) = @_;

	$b->query("SELECT redlock_acquire('$name', scope => 'session')");
	$session = session($host);
	$session->send("SELECT $call");
	wait_until(sub { $host->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = '$name'") eq 'waiting' },
		'the session waits');
	write_mapped($file, $session->pid, 0);
	$b->query("SELECT redlock_release('$name')");
	wait_until(\&stalls, 'and stalls when it is granted the lock');
	return;
}

stall_at_grant('one', "redlock_acquire('one', scope => 'detached', ttl => '2 s', hold_at_most => '1 s')");
wait_until(sub { $b->query("SELECT redlock_try('one', ttl => '2 s')") eq 't' }, 'another host gets the lock');
write_mapped($file, 0, 0);
my $result = $session->result;
is("$result->{state} $result->{message}", '40001 the lease on redlock "one" was lost', 'the session gets an error, and no token');
is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE scope = 'detached' AND state = 'held'"), 0, 'nothing is left behind');
is($session->query("SELECT redlock_acquire('one', scope => 'detached', hold_at_most => '10 min') > 0"), 't', 'the session goes on');
$session->quit;

stall_at_grant('tried', "redlock_try_detached('tried', '1 s', wait => '1 min', ttl => '2 s')");
wait_until(sub { $b->query("SELECT redlock_try('tried', ttl => '2 s')") eq 't' }, 'another host gets the lock of a try');
write_mapped($file, 0, 0);
$result = $session->result;
is("$result->{state} $result->{message}", '40001 the lease on redlock "tried" was lost', 'the try is an error, too');
is($session->query("SELECT redlock_try_detached('tried', '10 min', wait => '1 min') > 0"), 't', 'and the session goes on');
$session->quit;

# ---- the server stops ----

$host->safe_psql('postgres', "SELECT redlock_acquire('kept', scope => 'detached', hold_at_most => '10 min')");
# A call for several locks would stall at the request for the second lock, under a lock of the lease
# table.
stall_at_grant('stop', "redlock_acquire('stop', scope => 'detached', hold_at_most => '10 min')");
my $broker = broker_pid($host);
kill 'TERM', $host->{_pid};
wait_until(
	sub {
		my @status = split /\n/, slurp_file($host->data_dir . '/postmaster.pid');
		return ($status[7] // '') =~ /stopping/;
	},
	'the server begins a smart shutdown');
kill 'TERM', $broker;
wait_until(sub { key_count('redlock:kept', @nodes) == 0 }, 'its broker ends what is detached');
write_mapped($file, 0, 0);
$result = $session->result;
like("$result->{state} $result->{message}", qr/^40001 the lease on redlock "stop" was lost/, 'the session gets an error, and no token');
wait_until(sub { key_count('redlock:stop', @nodes) == 0 }, 'the lock is released at the nodes');
$session->quit;
$b->quit;
wait_until(sub { !-e $host->data_dir . '/postmaster.pid' }, 'the server has stopped');
$host->_update_pid(0);
done_testing();

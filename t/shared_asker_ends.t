# Readers wait for a writer of another host, and the session asking the nodes ends.
#
# Protects from: an error (08006) in the other readers, although all nodes answer.

use strict;
use warnings;

use RedlockTest;
use Test::More;

use constant { READERS => 12, ASKERS => 4 };

my @nodes = redis_nodes(3);
my ($host_a, $host_b) = map { redlock_cluster($_, nodes => \@nodes, conf => "redlock.node_timeout = '200ms'") } qw(a b);
my $writer = session($host_a);
$writer->query("SELECT redlock_acquire('shared', scope => 'session')");

# The pid of the session that asks the nodes.
sub asker
{
	return $host_b->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE state = 'waiting'");
}

sub patient_readers
{
	my ($count) = @_;
	wait_until(
		sub {
			$host_b->safe_psql('postgres',
				"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'redlock_acquire' AND state = 'active'"
				  . " AND pid <> pg_backend_pid() AND now() - query_start > interval '1 s'") == $count;
		},
		"$count sessions have waited for longer than two timeouts", 60);
	return;
}

# Ends sessions that ask, one after another.
sub askers_end
{
	my ($count, $what) = @_;

	foreach my $ended (1 .. $count)
	{
		my $pid = asker();
		$host_b->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		wait_until(sub { my $next = asker(); $next ne '' && $next ne $pid }, "$what: another session asks, $ended");
	}
	return;
}

my @readers = map { session($host_b) } 1 .. READERS;
$_->send("SELECT redlock_acquire('shared', mode => 'shared')") foreach @readers;
patient_readers(READERS);
askers_end(ASKERS, 'readers');
is(scalar(grep { $_->done } @readers), ASKERS, 'only the cancelled readers end');

$writer->query("SELECT redlock_release('shared')");
wait_until(sub { READERS == grep { $_->done } @readers }, 'all others get the lock');
is_deeply([ sort map { $_->result->{state} } @readers ], [ ('') x (READERS - ASKERS), ('57014') x ASKERS ], 'without an error');
$_->quit foreach @readers;

# ---- readers behind a writer of this host ----

$writer->query("SELECT redlock_acquire('shared', scope => 'session')");
my $first = session($host_b);
$first->send("SELECT redlock_acquire('shared')");
wait_until(sub { asker() eq $first->pid }, 'a writer of this host asks');
@readers = map { session($host_b) } 1 .. READERS;
$_->send("SELECT redlock_acquire('shared', mode => 'shared')") foreach @readers;
patient_readers(READERS + 1);
askers_end(1, 'a writer');
is(scalar(grep { $_->done } @readers), 0, 'no reader ends with the writer');
$writer->query("SELECT redlock_release('shared')");
wait_until(sub { READERS == grep { $_->done } @readers }, 'the readers get the lock');
is_deeply([ map { $_->result->{state} } @readers ], [ ('') x READERS ], 'without an error');
$_->quit foreach @readers, $first, $writer;

done_testing();

# Sessions of one host wait equally long for a lock of another host: each hears that another host
# holds the lock.  The second session passes the gate when its time is nearly over, and has a
# moment for the nodes.
#
# Protects from: an error blaming healthy nodes, or the broker, because a session had no time left
# for their answers.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host_a = redlock_cluster('a', nodes => \@nodes);
my $host_b = redlock_cluster('b', nodes => \@nodes);
my $holder = session($host_a);
my @waiters = map { session($host_b) } 1 .. 6;

$holder->query("SELECT redlock_acquire('job', scope => 'session')");
foreach my $round (1 .. 5)
{
	foreach my $limit ('wait', 'lock_timeout')
	{
		my $terms = $limit eq 'wait' ? ", wait => '700 ms'" : '';

		$_->query('SET lock_timeout = ' . ($limit eq 'wait' ? 0 : 700)) foreach @waiters;
		$_->send("SELECT redlock_acquire('job', scope => 'session'$terms)") foreach @waiters;
		my @told = map { $_->result } @waiters;
		is(scalar(grep { $_->{state} eq '55P03' } @told), 6, "all are told that another holds it ($limit)")
		  or diag(join "\n", map { "$_->{state} $_->{message}; $_->{detail}" } @told);
	}
}
$_->quit foreach @waiters, $holder;
done_testing();

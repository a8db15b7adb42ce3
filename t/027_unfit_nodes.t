# Nodes that answer, but can't be trusted with all that is asked of them, say so:
# once in the log, and in redlock_nodes for as long as it lasts.
#
# Protects from: a log that fills with one node's trouble.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

# ---- a node that does not let us subscribe ----

{
	my @nodes = redis_nodes(3);

	$_->cli(qw(ACL SETUSER default -subscribe)) foreach @nodes;
	my $host_a = redlock_cluster('deaf_a', nodes => \@nodes, conf => "redlock.ttl = '60s'");
	my $host_b = redlock_cluster('deaf_b', nodes => \@nodes);
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my $tries = sub { $nodes[0]->cli(qw(INFO commandstats)) =~ /cmdstat_subscribe:.*rejected_calls=(\d+)/ ? $1 : 0 };
	my $told = sub { scalar(() = slurp_file($host_b->logfile) =~ /@{[shift->address]} does not let us subscribe: NOPERM/g) };

	$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
	$on_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
	wait_until(sub { $tries->() >= 4 }, 'who waits tries to subscribe again and again');
	is($told->($_), 1, 'the log says once that it may not') foreach @nodes;

	# it may, and then it may not again
	$_->cli(qw(ACL SETUSER default +subscribe)) foreach @nodes;
	wait_until(sub { 3 == grep { $_->cli(qw(PUBSUB NUMSUB redlock:job)) =~ /\n1$/ } @nodes }, 'it subscribes when it may');
	$_->cli(qw(ACL SETUSER default -subscribe)), $_->cli(qw(CLIENT KILL TYPE pubsub)) foreach @nodes;
	my $before = $tries->();
	wait_until(sub { $tries->() >= $before + 4 }, 'until it may not again');
	is($told->($_), 2, 'the log says so once more') foreach @nodes;

	$on_a->query("SELECT redlock_release('job')");
	is($on_b->result->{out}, 't', 'it gets the lock by asking');
	$_->quit foreach $on_a, $on_b;
	$_->stop foreach $host_a, $host_b;
	$_->kill9 foreach @nodes;
}

done_testing();

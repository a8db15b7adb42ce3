# The reason for the loss of a lease, as the session and the server log give it.
#
# Protects from: a stopped broker, or a node that is down, blamed for the end of hold_at_most;
# hold_at_most or a node blamed for a stopped broker.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('why', nodes => \@nodes, conf => "redlock.node_timeout = '300ms'");
my $s     = session($host);

# The session learns the reason from redlock_check, the log from the broker.
sub is_lost_because
{
	my ($name, $terms, $reason, $while_lost) = @_;
	my $result;
	my $check = sub { $result = $s->run("SELECT redlock_check('$name')"); return $result->{state} ne ''; };

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->query("SELECT redlock_acquire('$name', scope => 'session', $terms)");
	$while_lost->($check);
	wait_until($check, "$name: the lease is lost");
	is("$result->{state} $result->{detail}", "40001 $reason", 'the session gets the reason');
	wait_until(sub { slurp_file($host->logfile) =~ /lease on redlock "$name" of .* was lost/ }, 'the log tells the loss');
	is((slurp_file($host->logfile) =~ /lease on redlock "$name" of .* was lost\n.*DETAIL:  (.*)/)[0], $reason, 'with the same reason');
	$s->query("SELECT redlock_release('$name')");
	return;
}

sub without_broker
{
	my ($check) = @_;
	my $broker = broker_pid($host);

	kill 'STOP', $broker;
	wait_until($check, 'the session does not need the broker to notice');
	kill 'CONT', $broker;
	return;
}

is_lost_because('limit', "hold_at_most => '300 ms'", 'The hold_at_most of 300 ms has ended.', sub { });
is_lost_because('broker', "ttl => '1 s'", 'The broker did not renew the lease in time.', \&without_broker);
is_lost_because('broker before limit', "ttl => '1 s', hold_at_most => '1 h'", 'The broker did not renew the lease in time.', \&without_broker);

$nodes[2]->kill9;
wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'backing off'") eq '1' }, 'a node is down');
is_lost_because('limit, node down', "ttl => '1 s', hold_at_most => '2 s'", 'The hold_at_most of 2000 ms has ended.', sub { });
is_lost_because('broker, node down', "ttl => '1 s'", 'The broker did not renew the lease in time.', \&without_broker);

$s->quit;
done_testing();

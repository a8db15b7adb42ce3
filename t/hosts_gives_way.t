# A host gives way to an established host with different settings.  It began while no common node
# was within reach, and then has idle leases, or readers.
#
# Protects from: the established host refusing for as long as sessions of the other host take idle
# leases, or join shared leases, one after another.

use strict;
use warnings;

use HostileNode;
use RedlockTest;
use Test::More;

sub state_on { my ($host, $name) = @_; return psql_result($host, "SELECT redlock_try('$name')")->{state}; }

foreach my $case (qw(idle shared))
{
	my @nodes       = redis_nodes(5);
	my $established = redlock_cluster("established_$case", nodes => [ @nodes[ 0 .. 2 ] ]);
	wait_until(sub { state_on($established, 'first') eq '' }, "$case: the first host takes locks");
	my $began = time;

	wait_until(sub { time - $began > 6 }, 'which counts as established after 5 s');
	my $way = HostileNode->new($nodes[2]);
	$way->stop;
	my $later = redlock_cluster("later_$case", nodes => [ $way, @nodes[ 3, 4 ] ], ready => 2);
	wait_until(sub { state_on($later, 'second') eq '' }, 'a later host does, without the common node');

	# shared: one of two readers always holds the lock
	my @sessions = map { session($later) } 1 .. ($case eq 'shared' ? 2 : 1);
	my $acquire  = "SELECT redlock_acquire('job', scope => 'session', "
	  . ($case eq 'shared' ? "mode => 'shared')" : "keep_idle => '1 hour')");
	is($_->run($acquire)->{state}, '', 'a session has the lock') foreach @sessions;
	$way->start;
	my $turn = 0;
	my $refused;
	wait_until(
		sub {
			my $s = $sessions[ $turn++ % @sessions ];
			$s->run("SELECT redlock_release('job') WHERE EXISTS (SELECT FROM redlock_locks WHERE pid = pg_backend_pid())");
			$refused = $s->run($acquire);
			return state_on($established, 'first') eq '' && $turn > 3 && $refused->{state} ne '';
		},
		'the established host goes on', 60);
	is($refused->{state}, '55000', 'the later host does not');
	like($refused->{message}, qr/since host "established_$case" has other settings and might get it too/, 'as the error says');
	$_->quit foreach @sessions;
	$_->stop foreach $established, $later;
}

done_testing();

# A server is listed under two names, restarts, and is first met by its second name.
#
# Protects from (invariant 4): a server voting twice in a round of renewals, once by each name: a
# lease renewed without a majority of servers, while the remaining servers could grant the lock to
# another host.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $ttl = 12;
my ($server, $other) = redis_nodes(2, unix => 1);
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my ($first, $second) = ("$dir/first", "$dir/second");

symlink $server->socket, $first or die "$first: $!";
my $host = redlock_cluster('host',
	nodes => [ "unix://$first", "unix://$second", $other ],
	ready => 2,
	# the pause after an undecided round
	conf => "redlock.node_timeout = '6 s'");
my $holder = session($host);

sub stat_of
{
	my ($what) = @_;
	return $host->safe_psql('postgres', "SELECT $what FROM redlock_stats");
}

sub node_has
{
	my ($node, $condition) = @_;
	return $host->safe_psql('postgres', "SELECT $condition FROM redlock_nodes WHERE node = '$node'") eq 't';
}

$holder->query("SELECT redlock_acquire('job', scope => 'session', ttl => '$ttl s')");

# From here on a majority is gone, unnoticed.
$other->pause;
my $left_ms = $server->cli('PTTL', 'redlock:job');
wait_until(
	sub {
		my $before_ms = $left_ms;
		return ($left_ms = $server->cli('PTTL', 'redlock:job')) > $before_ms;
	},
	'the server renews the lease by its first name');
my $renewed = stat_of('renewed');

unlink $first or die "$first: $!";
symlink $server->socket, $second or die "$second: $!";
$server->restart;
wait_until(sub { node_has($second, "state = 'ready' AND votes_yes > 0") },
	'after a restart, the second name of the node takes the renewal');

wait_until(sub { stat_of('lost') == 1 }, 'the lease ends');
is(stat_of('renewed'), $renewed, 'and was not renewed by one server of three nodes');
$holder->run("SELECT redlock_release('job')");

# The first name comes back, and is now refused.
$other->resume;
symlink $server->socket, $first or die "$first: $!";
wait_until(sub { node_has($first, "state = 'refused' AND last_error ~ 'same server'") },
	'one of the two names of the server is used');
wait_nodes_ready($host, 2);
wait_until(sub { $holder->run("SELECT redlock_try('job')")->{out} eq 't' },
	'two servers are a quorum');
$other->pause;
is($holder->run("SELECT redlock_try('other')")->{state}, '08006', 'one is none');
$other->resume;
$holder->quit;
done_testing();

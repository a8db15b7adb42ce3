# The password of the nodes changes by a reload, as docs/how-to/permissions.md says, while sessions
# acquire and hold locks.
#
# Protects from: a reload that closes the connections to all nodes at once, so that calls fail; a
# held lock lost with the connections; a node that stays connected by the old password, or is
# connected again by the old password.
#
# The answer to AUTH comes late, so closing all connections at once would leave the host without a
# quorum for a while.

use strict;
use warnings;

use HostileNode;
use RedlockTest;
use Test::More;

my @redis = redis_nodes(3);
my @nodes = map { HostileNode->new($_) } @redis;
$_->cli(qw(ACL SETUSER app on >old >new ~* &* +@all)) foreach @redis;
$_->obey([ '^AUTH', 'delay', 0.3 ]) foreach @nodes;

sub urls
{
	my ($password) = @_;
	return map { "redis://app:$password\@" . $_->address } @nodes;
}

my $host = redlock_cluster('a', nodes => [ urls('old') ], conf => "redlock.node_timeout = '4s'\nredlock.ttl = '15s'");
my ($holder, $s) = map { session($host) } 1 .. 2;
my $tries = sub { return $host->safe_psql('postgres', 'SELECT granted FROM redlock_stats'); };

sub wait_tries
{
	my ($what) = @_;
	my $before = $tries->();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(sub { $s->done || $tries->() > $before + 10 }, $what);
}

wait_until(sub { psql_result($host, "SELECT redlock_try('begin')")->{out} eq 't' }, 'the host takes locks');
my $token = $holder->query("SELECT redlock_acquire('held', scope => 'session')");

# ---- the new password ----

repeat($s, <<'SQL');
		IF NOT redlock_try('tried', scope => 'session') THEN
			RAISE EXCEPTION 'refused';
		END IF;
		PERFORM redlock_release('tried')
SQL
wait_tries('a session takes a lock again and again');
my $before = $host->safe_psql('postgres', 'SELECT clock_timestamp()');
$host->append_conf('postgresql.conf', redlock_conf(nodes => [ urls('new') ]));
$host->reload;
wait_until(
	sub {
		$host->safe_psql('postgres', <<SQL) eq 't';
SELECT count(*) = 3 AND pg_conf_load_time() > '$before'
FROM redlock_nodes WHERE state = 'ready' AND since > pg_conf_load_time()
SQL
	},
	'all nodes are connected anew');
wait_tries('the session goes on');
end_repeats($host);
is($s->result->{err}, '', 'and had no error meanwhile');
is($holder->query("SELECT redlock_token('held')"), $token, 'a held lock has its token');
is($holder->query("SELECT redlock_check('held') > '0'"), 't', 'and is held');
is($host->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), '0', 'no lease was lost');

# ---- without the old password ----

# Redis keeps connections made by a removed password.
$_->cli(qw(ACL SETUSER app <old)) foreach @redis;
foreach my $i (0 .. 2)
{
	my $since = $host->safe_psql('postgres', 'SELECT clock_timestamp()');
	my $address = $nodes[$i]->address;

	is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'"), '3', 'all nodes are ready');
	$redis[$i]->cli(qw(CLIENT KILL USER app));
	wait_until(
		sub {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM redlock_nodes WHERE node = '$address' AND state = 'ready' AND since > '$since'") eq '1';
		},
		'a node whose connection breaks is connected by the new password');
}
is($s->query("SELECT redlock_try('other', scope => 'session')"), 't', 'a new lock is granted');
is($holder->query("SELECT redlock_token('held')"), $token, 'the held lock has its token');
is($holder->query("SELECT redlock_release('held')"), 't', 'and is released');
wait_until(sub { key_count('redlock:held', @redis) == 0 }, 'at all nodes');

$_->quit foreach $holder, $s;
done_testing();

# A hostile minority of nodes, or sessions with endless questions, while other sessions look at locks
# or release locks by force.
#
# Protects from: a node telling the hash of another script, and so spoiling the answers of all
# nodes; an endless list of keys filling a session's memory, and blocking the lists of other
# sessions; a malformed answer about many locks taking locks out of a list; a single node with a
# wrong counter making forced releases fail, or spreading the counter to the other nodes; a few
# dashboards, while a host hangs, keeping operators from asks and forced releases; an idle broker
# blamed for these dashboards.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @redis = redis_nodes(3);
my $hostile = HostileNode->new($redis[0]);
my $host = redlock_cluster('a', nodes => [ $hostile, @redis[ 1, 2 ] ],
	conf => "redlock.ttl = '60s'\nredlock.node_timeout = '10s'");
my ($holder, $session) = map { session($host) } 1, 2;

my $list = "SELECT string_agg(resource || ' ' || state, ',') FROM redlock_holders()";

$holder->query("SELECT redlock_acquire('job', scope => 'session')");

# ---- the hash of another script ----

# the answer comes after the hashes of all other nodes
my ($hash) = map { $_->cli('SCRIPT', 'LOAD', "return 'another script'") } @redis;
$hostile->obey([ '^SCRIPT LOAD', 'instead', "\$40\\r\\n$hash\\r\\n" ]);
$redis[0]->cli('CLIENT', 'PAUSE', 1000, 'ALL');
foreach my $time (1 .. 3)
{
	is($session->run("SELECT state FROM redlock_holder('job')")->{out}, 'held', "look $time at the lock");
	is($session->run($list)->{out}, 'job held', "list $time of locks");
}
$hostile->obey;
# the first answers may still come from the other script
my @usable = map { $session->query("SELECT count(*) FROM redlock_inspect('job') WHERE error IS NULL") } 1 .. 3;
is($usable[2], 3, 'a wrong hash is forgotten') or diag("@usable");

# ---- an endless list ----

$session->query("SET statement_timeout = '50s'");

my %keys = (
	'of new keys' => join('', map { "redlock:$_ #\\0" } 100 .. 599),
	'of one key' => "redlock:job\\0",
	'of no keys' => '');

foreach my $what (sort keys %keys)
{
	my $len = length($keys{$what} =~ s/\\0/0/gr =~ s/#/'0' x 15/ger);
	my $cursor = $what eq 'of new keys' ? '#' : '0' x 14 . '7';

	$hostile->obey([ '^EVAL', 'count', "*2\\r\\n\$15\\r\\n$cursor\\r\\n\$$len\\r\\n$keys{$what}\\r\\n" ]);
	is($session->run($list)->{out}, 'job held', "a list $what ends");
}

# ---- records with wrong lengths ----

my $nodes = "SELECT string_agg(resource || ' ' || state || ' ' || nodes, ',') FROM redlock_holders()";
$hostile->obey([ '^EVAL', 'edit', '\\00\\00\\0', '\\00\\09\\0' ]);
is($session->query($nodes), 'job held 2', 'a malformed answer counts as none');
$hostile->obey;
is($session->query($nodes), 'job held 3', 'a correct answer counts again');

# ---- a counter that a forced release does not raise ----

$hostile->obey([ '^EVAL', 'edit', ':1\\r\\n$16\\r\\n1', ':1\\r\\n$16\\r\\n0' ]);
is($session->run("SELECT redlock_force_release('job') LIKE 'cluster=%'")->{out}, 't', 'a forced release');
is($session->query("SELECT redlock_is_locked('job')"), 'f', 'the lock is free');

# ---- a new counter, changed by the hostile node ----

$hostile->obey;
$holder->query("SELECT redlock_acquire('next', scope => 'session')");
my $counter = sub { return $redis[1]->cli('EVAL', q{return redis.call('GET', KEYS[1] .. '\0token')}, 1, 'redlock:next') };
my $before = $counter->();
my $more = $before + 1_000_000; # above the room of the first round

# two nodes answer, and both are needed; the different former counters need another round
$redis[2]->pause;
my $between = '\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n:1\r\n$16\r\n';
my $year = substr $before, 0, 2; # the first digits: a counter of next year is within the bounds
$hostile->obey([ '^EVAL', 'edit', "$before$between$year", $more . $between . ($year + 1) ]);
is($session->run("SELECT redlock_force_release('next')")->{state}, '08006', 'the node does not count');
cmp_ok($counter->(), '<', $more, 'and its number does not spread to other nodes');
$redis[2]->resume;
$hostile->obey;
is($session->run("SELECT redlock_force_release('next') IS NULL")->{state}, '', 'later a forced release succeeds');

# ---- sessions with endless questions ----

# Each question about waiting hosts lasts a whole node_timeout, since the holder's host hangs.
my $asking = redlock_cluster('c', nodes => \@redis, conf => "redlock.ttl = '60s'\nredlock.node_timeout = '1s'");
my $operator = session($asking);
my $dashboard = <<'SQL';
DO $$ BEGIN LOOP
	BEGIN PERFORM redlock_waiters('hung');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN RAISE LOG 'a dashboard failed: %', SQLERRM;
	END;
END LOOP; END $$
SQL
my $broker = broker_pid($host);

$holder->query("SELECT redlock_acquire(name, scope => 'session') FROM unnest(ARRAY['hung', 'held']) name");
kill 'STOP', $broker;
my @dashboards = map { session($asking) } 1 .. 60;
$_->send($dashboard) foreach @dashboards;
wait_until(sub { slurp_file($asking->logfile) =~ /LOG:  a dashboard failed: (.*)/ }, 'some dashboards find no place for their questions');
my ($failure) = slurp_file($asking->logfile) =~ /LOG:  a dashboard failed: (.*)/;
is($failure, 'too many sessions of this server ask about redlocks', 'the error names the reason');
foreach my $time (1 .. 3)
{
	is($operator->run("SELECT redlock_ask_release('hung') LIKE 'cluster=%'")->{out}, 't', "an operator asks for a release ($time)");
	is($operator->run("SELECT redlock_force_release('none $time') IS NULL")->{out}, 't', "and releases a lock by force ($time)");
}
like($operator->run("SELECT redlock_force_release('held')")->{out}, qr/^cluster=/, 'also a held lock');
kill 'CONT', $broker;
$_->vanish foreach @dashboards;
$_->quit foreach $holder, $session, $operator;
done_testing();

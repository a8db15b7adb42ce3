# redlock.nodes_next on its own: the lists in force, the views, and permitted failures.
# t/lists_replace_nodes.t has a whole change under load.
#
# Protects from: a node in both lists counting twice, or for a single list; a majority of all nodes
# counting as a majority of each list; passwords shown; overlong lists cut silently; a host looking
# settled while its lists are not in force; a lease or a waiter lost when the next list comes, goes
# or takes over, or when the broker ends during the change; a call failing while this host looks at
# the other hosts; a lock kept after its release, and free at the new nodes; new nodes voting
# although they may have forgotten keys.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $secret = 'S3cr3t';
my @old = redis_nodes(3);
my @new = (redis_nodes(2), redis_node(password => $secret));
my ($host, $other) = map {
	redlock_cluster($_, nodes => \@old, conf => "redlock.ttl = '6s'\nredlock.max_ttl = '30s'")
} qw(host other);
my ($s, $t) = map { session($_) } $host, $other;

# Waits until the server shows "list=count" for each list, of ready and leaving nodes, and then the
# number of unsettled leases.
sub shown
{
	my ($server, $expected, $what) = @_;
	my $sql = "SELECT concat_ws(' ', (SELECT string_agg(list || '=' || n, ' ' ORDER BY list) FROM
		(SELECT list, count(*) AS n FROM redlock_nodes WHERE state IN ('ready', 'leaving') GROUP BY list) l),
		coalesce(unsettled::text, 'null')) FROM redlock_stats";

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(sub { $server->safe_psql('postgres', $sql) eq $expected }, "$what: $expected")
	  || diag($server->safe_psql('postgres', "TABLE redlock_nodes; $sql"));
}

sub is_held
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($s->run("SELECT redlock_check('held') > '0'")->{out}, 't', "$what: the lease is held");
	return;
}

# ---- nodes in both lists ----

shown($host, 'now=3 0', 'one list');
$s->query("SELECT redlock_acquire('held', scope => 'session')");
set_node_lists($host, \@old, [ @old[ 1, 2 ], $new[0] ]);
shown($host, 'both=2 next=1 now=1 0', 'two lists that share nodes');
is(key_count('redlock:held', $new[0]), 1, 'the lease that was held gets to the new node');
my %down = (
	'one of each list' => [ [ $old[0], $new[0] ], '' ],
	'two of the next list, and one of the other' => [ [ $old[1], $new[0] ], '08006' ],
	'two of the first list, and one of the other' => [ [ @old[ 0, 1 ] ], '08006' ]);
foreach my $which (sort keys %down)
{
	my ($nodes, $state) = @{ $down{$which} };

	$_->kill9 foreach @$nodes;
	is($s->run("SELECT redlock_try('new')")->{state}, $state,
		"without $which: " . ($state eq '' ? 'a majority of each' : 'no majority of one'));
	$_->start foreach @$nodes;
	shown($host, 'both=2 next=1 now=1 0', 'all are back');
	is_held("without $which");
}
set_node_lists($host, \@old, []);
shown($host, 'now=3 0', 'the next list is taken away');
wait_until(sub { key_count('redlock:held', $new[0]) == 0 }, 'the key at the node that was left is deleted', 2);
is_held('the way back');

my ($tries, $waits) = map { session($host) } 1 .. 2;
repeat($tries, "PERFORM redlock_try('often', scope => 'session'); PERFORM redlock_release('often')");
repeat($waits, "PERFORM redlock_acquire('again', scope => 'session', wait => '1 min'); PERFORM redlock_release('again')");
foreach (1 .. 5)
{
	set_node_lists($host, \@old, [ @old[ 1, 2 ], $new[0] ]);
	shown($host, 'both=2 next=1 now=1 0', 'the next list comes');
	set_node_lists($host, \@old, []);
	shown($host, 'now=3 0', 'and goes');
}
end_repeats($host);
is($_->result->{message}, '', 'waiters and tries notice nothing of the change') foreach $tries, $waits;
$host->safe_psql('postgres', 'DROP TABLE end_repeats');
$_->quit foreach $tries, $waits;

# ---- wrong lists ----

my $wrong = $s->run("ALTER SYSTEM SET redlock.nodes_next = 'redis://u:geheim\@h:x'");
is($wrong->{state}, '22023', 'a list that is wrong is an error');
like($wrong->{message}, qr/^invalid value for parameter "redlock.nodes_next": /, 'which names the setting');
unlike($wrong->{message}, qr/geheim/, 'and not the password');
is($s->run("SET redlock.nodes_next = ''")->{state}, '55P02', 'no session may set it for itself');

my @dead = map { 'redis://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1 .. 13;
set_node_lists($host, \@old, \@dead);
wait_until(sub { slurp_file($host->logfile) =~ /redlock.nodes and redlock.nodes_next are not in force/ },
	'16 nodes together are too many');
like(slurp_file($host->logfile), qr/The two lists name 16 nodes together; the limit is 15\./, 'and it is said how many may be');
shown($host, 'now=3 null', 'the former list is in force, and nothing is said to be settled');
is($s->run("SELECT redlock_try('new')")->{out}, 't', 'locks are asked for there');
is_held('too many nodes');

# ---- the next list takes over, and the broker ends in between ----

$t->send("SELECT redlock_acquire('held', scope => 'session') > 0");
set_node_lists($_, \@old, \@new) foreach $host, $other;
shown($host, 'next=3 now=3 0', 'two lists');
my $pid = broker_pid($host);
kill 'TERM', $pid;
wait_until(sub { broker_pid($host) =~ /^(?!$pid$)\d+$/ }, 'the broker is replaced');
shown($host, 'next=3 now=3 0', 'its successor has both lists');
is_held('another broker');
wait_until(sub { key_count('redlock:held', @old, @new) == 6 }, 'each node has its key');
shown($other, 'next=3 now=3 0', 'two lists on the other host');
ok(!$t->done, 'the session that waits goes on waiting');
unlike($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes; SHOW redlock.nodes_next'), qr/$secret/,
	'no password is shown');
like($s->query('SHOW redlock.nodes_next'), qr/\Q***@\E/, 'but that there is one');

my $kept_from = $s->query("SELECT extract(epoch FROM clock_timestamp())");
$s->query("SELECT redlock_acquire('kept', hold_at_least => '20 s', scope => 'session')");
$s->query("SELECT redlock_release('kept')");
wait_until(sub { 6 == grep { $_->cli('GET', 'redlock:kept') =~ /kept/ } @old, @new },
	'a key that is kept is at the nodes of both lists');
is($host->safe_psql('postgres', 'SELECT kept_until IS NULL FROM redlock_stats'), 't', 'redlock_stats.kept_until is null');

# the postmaster reads the file while no broker can put the lists into force
$pid = broker_pid($host);
my $size = -s $host->logfile;
kill 'STOP', $pid;
kill 'TERM', $pid;
set_node_lists($_, \@new, []) foreach $host, $other;
wait_until(sub { substr(slurp_file($host->logfile), $size) =~ /received SIGHUP/ }, 'the file is read');
like($host->safe_psql('postgres', "SELECT string_agg(list, ' ' ORDER BY list) FROM redlock_nodes"),
	qr/^next next next now now now$/, 'a list that is not in force is not shown');
kill 'CONT', $pid;
shown($_, 'now=3 0', 'the new list') foreach $host, $other;
isnt(broker_pid($host), $pid, 'put into force by another broker');
is_held('the new list');
is(key_count('redlock:held', @old), 0, 'nothing is left at the old nodes');
$_->kill9 foreach @old;
ok(!$t->done, 'the session still waits');
is($s->query("SELECT redlock_release('held')"), 't', 'the lease is released');
is($t->result->{out}, 't', 'who waited gets it, by the new nodes');
is($t->query("SELECT redlock_try('kept', scope => 'session')"), 'f', 'what is kept is not free there');
$t->query("SELECT redlock_acquire('kept', scope => 'session')");
cmp_ok($t->query("SELECT extract(epoch FROM clock_timestamp())") - $kept_from, '>=', 19.9, 'before its end');
$t->query('SELECT redlock_release_all()');

# ---- a lock kept at the nodes of a single list ----

$_->start foreach @old;
$s->query("SELECT redlock_acquire('kept', hold_at_least => '6 s'), redlock_acquire('held', scope => 'session')");
set_node_lists($host, \@new, \@old);
wait_until(sub { $host->safe_psql('postgres',
		"SELECT kept_until > now() AND kept_until < now() + interval '7 s' FROM redlock_stats") eq 't' },
	'redlock_stats has the end of the key kept before the change');
shown($host, 'next=3 now=3 0', 'while all leases are settled');
wait_until(sub { $host->safe_psql('postgres', 'SELECT kept_until IS NULL FROM redlock_stats') eq 't' }, 'until its end');

# ---- next nodes in quarantine ----

set_node_lists($host, \@new, []);
shown($host, 'now=3 0', 'one list again');
my @forgetful = redis_nodes(3, persist => 0);
set_node_lists($host, \@new, \@forgetful);
wait_quarantined($host, 'restarted', @forgetful);
is($s->run("SELECT redlock_try('new')")->{state}, '08006', 'new nodes that may have forgotten do not vote');
wait_until(sub { $host->safe_psql('postgres', 'SELECT unsettled FROM redlock_stats') eq '0' },
	'but take the leases that are held');
is(key_count('redlock:held', @forgetful), 3, 'each of them');
set_node_lists($host, \@new, []);
shown($host, 'now=3 0', 'without them');
is($s->run("SELECT redlock_try('new')")->{out}, 't', 'locks are granted again');

# ---- a list replaced at once ----

set_node_lists($host, \@old, []);
shown($host, 'leaving=3 now=3 1', 'a lease stays at a list that is replaced at once, and is told');
is_held('replaced at once');
$s->query("SELECT redlock_release('held')");
shown($host, 'now=3 0', 'until it ends');

is($host->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), '0', 'no lease was lost');
$_->quit foreach $s, $t;

# ---- a server starts with lists that cannot be in force ----

set_node_lists($other, \@new, \@dead);
$other->restart;
my $none = psql_result($other, "SELECT redlock_try('new')");
is($none->{state}, '55000', 'without a list in force nothing is asked for');
like($none->{message}, qr/no list of nodes is in force/, 'which the error says');
set_node_lists($other, [], []);
$other->restart;
like(psql_result($other, "SELECT redlock_try('new')")->{message}, qr/redlock\.nodes is not set/,
	'a server with unusable lists stops, and so does a server without nodes');
$other->restart;
$_->stop foreach $host, $other;
unlike(slurp_file($_->logfile), qr/$secret/, 'no password in the log') foreach $host, $other;
done_testing();

# A host stays behind while all nodes are replaced, see docs/how-to/replace-nodes.md.  A host with
# a wrong list gets the right list while it holds locks.
#
# Protects from: two holders of a lock, on a host with only the new nodes and on a host with only
# the old nodes, also after a restart; a host shown as settled with only the old list, or without
# the new nodes; a change ignoring a slow host, or never going on; locks of former nodes granted
# again by the present nodes.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @old = redis_nodes(3);
my @new = redis_nodes(3);
my %host = map { $_ => redlock_cluster($_, nodes => \@old, conf => "redlock.max_ttl = '30s'") } qw(a b);
my $is_new = "SELECT count(*) = 3 AND bool_and(list = 'now') FROM redlock_nodes WHERE list <> 'leaving'";
my $is_settled =
  "SELECT unsettled = 0 AND (SELECT count(*) FROM redlock_nodes WHERE list = 'next') = 3 FROM redlock_stats";

sub give
{
	my ($name, $nodes, $next) = @_;
	return set_node_lists($host{$name}, $nodes, $next);
}

sub is_so { return $host{ $_[0] }->safe_psql('postgres', $_[1]) eq 't'; }

sub waits { return slurp_file($host{a}->logfile) =~ /redlock\.nodes is not yet in force\n.*Host "b" /; }

sub both_in_force
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(!is_so('a', "SELECT bool_and(list <> 'now') OR NOT bool_or(list = 'next') FROM redlock_nodes"), 'both lists stay in force');
	return;
}

# Checks that host b does not get a lock of host a.
sub excludes
{
	my ($what) = @_;
	my $session = session($host{a});

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->run("SELECT redlock_try('job', scope => 'session')")->{out}, 't', "$what: a has the lock");
	is(psql_result($host{b}, "SELECT redlock_try('job', scope => 'session')")->{out}, 'f', "$what: b does not get it");
	$session->quit;
	return;
}

wait_nodes_ready($_, 3) foreach values %host;
wait_until(
	sub { $host{a}->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts WHERE nodes = 3') eq '2' },
	'the hosts see each other');
give('a', \@old, \@new);
wait_until(sub { is_so('a', $is_settled) }, 'a is settled, b has got nothing');

is($host{a}->safe_psql('postgres', "SELECT settled FROM redlock_hosts WHERE name = 'b'"), 'f', 'as a tells');

# cut off from most of the new nodes, host a does not know their hosts, and stays in both lists
my $id = host_id($host{a});
$_->pause foreach @new[ 0, 1 ];
wait_nodes_ready($host{a}, 4);
give('a', \@new, []);
wait_beats($id, $old[0]);
ok(!is_so('a', $is_new), 'a has not left the old nodes while most of the new ones are away');
wait_until(sub { $host{b}->safe_psql('postgres', "SELECT settled FROM redlock_hosts WHERE name = 'a'") eq 'f' },
	'nor is it settled');
$_->resume foreach @new[ 0, 1 ];
wait_nodes_ready($host{a}, 6);

wait_until(sub { waits() || is_so('a', $is_new) }, 'a is told to leave the old nodes');
like(slurp_file($host{a}->logfile),
	qr/DETAIL:  Host "b" \(id [0-9a-f]{16}\) uses only the list of nodes that this host is about to leave\..*\n.*HINT:  On that host, set redlock\.nodes to the old list/,
	'its log says that b has the old list alone, and what to do');
excludes('left behind');
ok(!is_so('a', $is_new), 'a has not left the old nodes');
is($host{a}->safe_psql('postgres', 'SELECT unsettled FROM redlock_stats'), '', 'the change is not done, as is told');

# the next broker stays in both lists, too
my $broker = broker_pid($host{a});
kill 'TERM', $broker;
wait_until(sub { my $next = broker_pid($host{a}); $next ne '' && $next ne $broker }, 'the next broker');
wait_until(sub { psql_result($host{a}, "SELECT redlock_try('other')")->{out} eq 't' }, 'acquires');
excludes('the next broker');

# after a restart the server stays in both lists, too
foreach my $mode ('fast', 'immediate')
{
	$host{a}->stop($mode);
	$host{a}->start;
	wait_until(sub { psql_result($host{a}, "SELECT redlock_try('other')")->{out} eq 't' }, 'acquires');
	excludes("after a stop, $mode");
	ok(!is_so('a', $is_new), 'a has not left the old nodes');
}

# Only the server's user may read the file.  The server does not use a damaged file, and logs a
# hint.
my $file = $host{a}->data_dir . '/pg_stat_tmp/redlock_pg.lists';
is((stat $file)[2] & 0777, 0600, 'the mode of the file with the lists');
$host{a}->stop;
my $damaged = slurp_file($file);
substr($damaged, length($damaged) / 3, 1) ^= "\1";
PostgreSQL::Test::Utils::append_to_file("$file.new", $damaged);
rename "$file.new", $file or die;
$host{a}->start;
wait_until(sub { is_so('a', $is_new) }, 'a has what its configuration says');
like(slurp_file($host{a}->logfile), qr/WARNING:  redlock file ".*" is not used\n.*damaged.*\n.*HINT:  If any host still uses only the first of the two lists/,
	'after a file that is damaged');
give('a', \@old, \@new);
wait_until(sub { is_so('a', $is_settled) }, 'a has both lists again');
give('a', \@new, []);

# neither other lists nor an empty list replace the joint lists
my @other = ([ [ @new[ 0, 1 ] ], [] ], [ [], [] ], [ [], \@new ], [ \@old, ['redis://127.0.0.1:1'] ],
	[ \@new, \@old ], [ \@new, ['redis://127.0.0.1:1'] ], [ ['redis://127.0.0.1:1'], \@old ]);
foreach my $other (@other)
{
	give('a', @$other);
	wait_beats(host_id($host{a}), $old[0]) if @{ $other->[0] };
	both_in_force();
}
give('a', \@new, []);
wait_until(sub { slurp_file($host{a}->logfile) =~ /WARNING:  redlock\.nodes is not in force, since a change between two lists is under way/ }, 'as the log tells');
excludes('after another list, and none');

give('b', \@old, \@new);
wait_until(sub { is_so('a', $is_new) }, 'when b has both lists, a leaves the old nodes');
like(slurp_file($host{a}->logfile), qr/redlock\.nodes is in force now/, 'and says so');
excludes('one has both, one the new list');
# there is no way back for b while a has the new list alone
give('b', \@old, []);
wait_until(sub { slurp_file($host{b}->logfile) =~ /redlock\.nodes is not yet in force\n.*Host "a" /
		|| is_so('b', 'SELECT count(*) = 3 FROM redlock_nodes') }, 'b is told to go back');
excludes('b does not go back');
ok(!-e $file, 'and its file');
give('b', \@new, []);
wait_until(sub { is_so('b', $is_new) }, 'so does b');
excludes('the new list');

# ---- a wrong list is set right at once ----

my @wrong = (@old[ 0, 1 ], $new[0]);
my $kept = session($host{b});
$kept->query("SELECT redlock_acquire('kept', scope => 'session')");
$host{b}->append_conf('postgresql.conf', "redlock.on_disagreement = 'warn'");
give('b', \@wrong, []);
wait_until(
	sub { is_so('b', "SELECT count(*) = 3 FROM redlock_nodes WHERE list = 'now' AND state = 'ready'") },
	'b has other nodes');
my $s = session($host{b});
like($s->query("SELECT redlock_acquire('held', scope => 'session')"), qr/^\d+$/, 'and a lock by these');
my $told;
wait_until(
	sub {
		$told = psql_result($host{a}, "SELECT redlock_try('other')");
		return $told->{state} eq '55000';
	},
	'a is told', 60);
my @address = map { $_->address } @old[ 0, 1 ], @new[ 1, 2 ];
like(
	$told->{detail},
	qr/Only that host has: (?:$address[0], $address[1]|$address[1], $address[0]); only this host has: (?:$address[2], $address[3]|$address[3], $address[2])\./,
	'nodes that b has left, but for a lock, are none of its list');
$kept->query("SELECT redlock_release('kept')");
give('b', \@new, []);
my ($result, $both) = ({}, 0);
wait_until(
	sub {
		$result = psql_result($host{a}, "SELECT redlock_try('held')");
		$both++ if $result->{out} eq 't';
		return $both || $result->{detail} =~ /That host holds locks by another list of nodes/;
	},
	'b has the right nodes', 60);
is($both, 0, 'a does not get what b has by its former nodes');
like($result->{hint}, qr/^Wait until that host has released these locks\. Or, on that host, set redlock\.nodes/, 'and is told what to do');
is(psql_result($host{a}, "SELECT name FROM redlock_hosts WHERE NOT agrees")->{out}, 'b', 'the view has it');
is($s->query("SELECT redlock_check('held') > '0', redlock_release('held')"), 't|t', 'b had it all the time');
wait_until(sub { psql_result($host{a}, "SELECT redlock_try('held')")->{out} eq 't' }, 'then a gets it', 60);

done_testing();

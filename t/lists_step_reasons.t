# The reasons in errors and in the log: a list of nodes was left, or is not yet in force.
#
# Protects from: an error naming a host and a list whose mark does not count; a lock free before the
# end of its hold_at_least on the host that released the lock, since the host has left the nodes;
# the advice to set both lists on a host which has both, but calls a node that is down by another
# name; the advice to look at the nodes when the hosts have too many configurations.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $conf = "redlock.max_ttl = '20s'";

sub has_both { return ok($_[0]->poll_query_until('postgres', 'SELECT bool_and(settled) FROM redlock_hosts'), $_[0]->name . ' has both lists'); }

sub has_new
{
	my ($host, $count) = @_;
	return ok($host->poll_query_until('postgres', "SELECT count(*) = $count AND bool_and(list = 'now') FROM redlock_nodes"),
		$host->name . ' has the new list');
}

# ---- a mark that does not count ----

my (@old, @new) = ();
@old = redis_nodes(3);
@new = redis_nodes(3);
my $late = redlock_cluster('late', nodes => \@old, conf => $conf);
$late->stop;
my $a = redlock_cluster('a', nodes => \@old, conf => $conf);
set_node_lists($a, \@old, \@new);
has_both($a);
set_node_lists($a, \@new, []);
has_new($a, 3);
$old[1]->cli('EVAL', q{
	local key = 'redlock:\0hosts\0mark:redlock:'
	local version, rest = string.match(redis.call('GET', key), '^(%d+)%z%x+%z(.*)$')
	rest = string.gsub(rest, '^(%d+%z%d+%z)[^%z]*%z[^%z]*%z', '%1stranger\0redis://10.9.9.9:6379\0')
	redis.call('SET', key, string.format('%d', version + 1000) .. '\00000000000000000aa\0' .. rest)}, 0);
$late->start;
my $result;
wait_until(sub { $result = psql_result($late, "SELECT redlock_try('job')"); return $result->{state} eq '55000'; }, 'a host with the old list', 60);
is($result->{detail}, "Host \"a\" has left these nodes for: " . join(', ', sort map { $_->address } @new) . '.',
	'names the host that has left the list');
$_->stop foreach $late, $a;

# ---- a lock that is kept after its release ----

@old = redis_nodes(3);
@new = redis_nodes(3);
my $keeper = redlock_cluster('keeper', nodes => \@old, conf => $conf);
my $s = session($keeper);
wait_until(sub { $s->run("SELECT redlock_acquire('job', scope => 'session', hold_at_least => '20 min')")->{state} eq '' }, 'a lock');
$s->query("SELECT redlock_release('job')");
set_node_lists($keeper, \@old, \@new);
ok($keeper->poll_query_until('postgres', 'SELECT count(*) = 6 FROM redlock_nodes'), 'both lists');
set_node_lists($keeper, \@new, []);
wait_until(sub { slurp_file($keeper->logfile) =~ /DETAIL:  This host keeps locks that were released before the end of hold_at_least/ },
	'the new list alone waits for the end of hold_at_least', 60);
is($s->run("SELECT redlock_try('job')")->{out}, 'f', 'the lock is kept');
$s->quit;
$keeper->stop;

# ---- two hosts name a node differently, and the node is down ----

@old = redis_nodes(3);
@new = redis_nodes(3);
my @old_ways = map { HostileNode->new($_) } @old;
my @new_ways = map { HostileNode->new($_) } @new;
my $one   = redlock_cluster('one',   nodes => \@old,      conf => $conf);
my $other = redlock_cluster('other', nodes => \@old_ways, conf => $conf);
set_node_lists($one,   \@old,      \@new);
set_node_lists($other, \@old_ways, \@new_ways);
has_both($_) foreach $one, $other;
$new[2]->kill9;
$new_ways[2]->stop;
$other->restart;
wait_nodes_ready($other, 5);
set_node_lists($one,   \@new,      []);
set_node_lists($other, \@new_ways, []);
wait_until(sub { slurp_file($one->logfile) =~ /DETAIL:  Host "other" \(id \w+\) may use other nodes: it names nodes by other addresses/ },
	'a step waits for the node that only one of the hosts knows', 90);
$new[2]->start;
$new_ways[2]->start;
has_new($_, 3) foreach $one, $other;
$_->stop foreach $one, $other;

# ---- more configurations than a node tells ----

@old = redis_nodes(3);
@new = redis_nodes(3);
my @ids  = map { $_->cli('INFO', 'server') =~ /run_id:(\w{16})/ } @old, @new;
my $many = redlock_cluster('many', nodes => \@old, conf => $conf);

# The hosts have both lists.
sub write_joint_hosts
{
	my @both = map { [ $_ < @old ? 1 : 2, $ids[$_] ] } 0 .. $#ids;

	write_hosts($_, standing => 1, max_ttl => 20000, nodes => \@both) foreach @old, @new;
	return;
}
write_joint_hosts();
set_node_lists($many, \@old, \@new);
ok($many->poll_query_until('postgres', 'SELECT count(*) = 6 FROM redlock_nodes'), 'both lists');
set_node_lists($many, \@new, []);
wait_until(
	sub {
		write_joint_hosts();
		return slurp_file($many->logfile) =~ /DETAIL:  Another host may still use only the list .* more configurations than the 16 that a node tells\./;
	},
	'a step waits for hosts that no node tells', 120);

done_testing();

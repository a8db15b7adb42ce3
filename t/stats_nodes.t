# The view redlock_stat_nodes: what the broker counts of each node.
#
# Protects from: commands, answers or errors not counted, counted twice, or counted in the wrong
# class; a histogram with another sum; counts lost with the broker; counts left by a reset; a new
# node with the counts of another node.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes,
	conf => "redlock.ttl = '60s'\nredlock.node_timeout = '400ms'\nredlock.max_ttl = '61s'");
my $s = session($host);

sub stat_of
{
	my ($node, $columns) = @_;
	my $address = $node->address;
	return $host->safe_psql('postgres', "SELECT $columns FROM redlock_stat_nodes WHERE node = '$address'");
}

my $errors = 'timeouts, connection_errors, refusals, memory_errors, other_errors';

# Waits until the nodes have answered all commands.
sub wait_answered
{
	my ($when) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { $host->safe_psql('postgres', 'SELECT releasing = 0 FROM redlock_stats') eq 't' },
		"$when: all is released");
}

sub pairs
{
	my ($count) = @_;

	$s->query("SELECT redlock_acquire('job', scope => 'session'), redlock_release('job')") foreach 1 .. $count;
	return wait_answered("after $count locks");
}

sub wait_more
{
	my ($node, $column, $before, $when) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { stat_of($node, $column) > $before }, "$when: $column has grown");
}

# ---- known traffic ----

is(stat_of($nodes[0], 'connects, quarantines, stats_reset > now() - interval \'1 hour\''), '1|0|t',
	'one connection since the start');
pairs(1);
$host->safe_psql('postgres', 'SELECT redlock_stat_reset()');
is(stat_of($_, "commands, answers, connects, total_answer_time, max_answer_time, $errors"), '0|0|0|0|0|0|0|0|0|0',
	'a reset sets all to zero')
  foreach @nodes;
pairs(10);
foreach my $node (@nodes)
{
	is(stat_of($node, "commands, answers, $errors"), '20|20|0|0|0|0|0', '10 acquires and 10 releases');
	is(stat_of($node, '(SELECT sum(n) FROM unnest(answer_histogram) n), cardinality(answer_histogram)'), '20|32',
		'the histogram has each answer once');
	is( stat_of($node,
			'max_answer_time > 0 AND total_answer_time BETWEEN max_answer_time AND 20 * max_answer_time'), 't',
		'sum and maximum fit together');
	# the bucket of the slowest answer: 2^(n-1) to below 2^n us
	is( stat_of($node,
			'(SELECT max(n) FROM unnest(answer_histogram) WITH ORDINALITY h(count, n) WHERE count > 0) '
			  . '= floor(log(2.0, (1000 * max_answer_time)::numeric)) + 1'), 't',
		'the slowest answer is in the last bucket used');
}
is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_stat_nodes s JOIN redlock_nodes n USING (node, memory_used)'),
	3, 'memory as in redlock_nodes, for each node');

# ---- errors by class ----

{
	my $before = stat_of($nodes[0], 'connects');

	$nodes[0]->kill9;
	wait_more($nodes[0], 'connection_errors', 1, 'a dead node');
	is(stat_of($nodes[0], 'timeouts, refusals, memory_errors, other_errors'), '0|0|0|0', 'and no other error');
	$nodes[0]->start;
	wait_nodes_ready($host, 3);
	is(stat_of($nodes[0], 'connects'), $before + 1, 'the node has come back once');
}

$nodes[1]->pause;
$s->query("SELECT redlock_acquire('job', scope => 'session'), redlock_release('job')");
wait_more($nodes[1], 'timeouts', 0, 'a node that hangs');
is(stat_of($nodes[1], 'connection_errors, refusals, memory_errors, other_errors'), '0|0|0|0', 'and no other error');
$nodes[1]->resume;
wait_nodes_ready($host, 3);
wait_answered('the node answers again');

$nodes[2]->cli('CONFIG', 'SET', 'maxmemory', '1');
$s->query("SELECT redlock_acquire('unknown name', scope => 'session'), redlock_release('unknown name')");
wait_answered('a full node');
is(stat_of($nodes[2], $errors), '0|0|0|1|0', 'the acquire of a new name failed');
$nodes[2]->cli('CONFIG', 'SET', 'maxmemory', '0');

$nodes[2]->cli('CONFIG', 'SET', 'requirepass', 'secret');
$nodes[2]->{password} = 'secret';
$nodes[2]->cli('CLIENT', 'KILL', 'TYPE', 'normal');
wait_more($nodes[2], 'refusals', 1, 'a node with another password');
is(stat_of($nodes[2], 'timeouts, memory_errors, other_errors'), '0|1|0', 'and no other error but the closed connection');
$nodes[2]->cli('CONFIG', 'SET', 'requirepass', '');
$nodes[2]->{password} = undef;
wait_nodes_ready($host, 3);

is(stat_of($nodes[2], 'quarantines'), 0, 'no node has forgotten anything');
$nodes[2]->restart(empty => 1);
wait_until(sub { stat_of($nodes[2], 'quarantines') == 1 }, 'a node that has lost its data gets a quarantine');

# ---- the broker ----

{
	my $columns = "commands, answers, total_answer_time, answer_histogram, $errors, stats_reset";
	my ($before, $connects) = map { stat_of($nodes[0], $_) } $columns, 'connects';

	replace_broker($host);
	wait_until(sub { stat_of($nodes[0], 'connects') == $connects + 1 }, 'the next broker has connected');
	is(stat_of($nodes[0], $columns), $before, 'it keeps the counts');
}

# ---- another list ----

my $fourth = redis_node();
$host->append_conf('postgresql.conf', redlock_conf(nodes => [ @nodes, $fourth ]));
$host->reload;
wait_until(sub { stat_of($fourth, 'connects, commands') eq '1|0' }, 'a new node begins at zero');
is( $host->safe_psql('postgres', "SELECT count(DISTINCT stats_reset) > 1 FROM redlock_stat_nodes"), 't',
	'and at a later time');

done_testing();

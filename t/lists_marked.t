# A late host with an old list of nodes.  Two hosts with the same name.  See
# docs/how-to/replace-nodes.md.
#
# Protects from: two holders of a lock, when a host was off while all nodes were replaced, or is a
# clone, and starts with the old list; a host going back to nodes that other hosts have left; marks
# stopping hosts when the nodes are in use again, or when a single host has a wrong list; two hosts
# with the same name, and no warning.
#
# Takes over a minute: hosts leave nodes step by step, several times.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @old = redis_nodes(3);
my @new = redis_nodes(3);
my $conf = "redlock.max_ttl = '30s'";
my %host = map { $_ => redlock_cluster($_, nodes => \@old, conf => $conf) } qw(a b late);

sub give
{
	my ($host, $nodes, $next) = @_;

	$host->append_conf('postgresql.conf',
		"redlock.nodes = '" . node_urls(@$nodes) . "'\nredlock.nodes_next = '" . node_urls(@$next) . "'\n");
	$host->reload if $host->{_pid};
	return;
}

sub is_so { return $_[0]->safe_psql('postgres', $_[1]) eq 't'; }
sub try_on { return psql_result($_[0], "SELECT redlock_try('job', scope => 'session')"); }
sub log_of { my ($host) = @_; return slurp_file($host->logfile); }

# Moves the hosts to another list, through joint lists.
sub replace
{
	my ($from, $to, @hosts) = @_;

	give($_, $from, $to) foreach @hosts;
	foreach my $host (@hosts)
	{
		wait_until(
			sub { is_so($host, "SELECT unsettled = 0 AND (SELECT count(*) FROM redlock_nodes WHERE list = 'next' AND state = 'ready') = 3 FROM redlock_stats") },
			$host->name . ' has both lists');
	}
	give($_, $to, []) foreach @hosts;
	foreach my $host (@hosts)
	{
		wait_until(sub { is_so($host, "SELECT count(*) = 3 AND bool_and(list = 'now') FROM redlock_nodes WHERE list <> 'leaving'") },
			$host->name . ' has the other list alone', 90);
	}
	return;
}

$host{late}->stop;
replace(\@old, \@new, @host{qw(a b)});

# ---- a host was off during the change ----

my $holder = session($host{a});
is($holder->run("SELECT redlock_try('job', scope => 'session')")->{out}, 't', 'a host with the new nodes has a lock');
$host{late}->start;
my $result;
wait_until(sub { $result = try_on($host{late}); $result->{state} ne '08006' && $result->{state} ne '57P03' }, 'the late one has looked at the old nodes');
is($result->{state}, '55000', 'a host that was off gets no lock by the old nodes');
like($result->{message}, qr/^redlock "job" is not acquired, since the hosts have left the nodes of this server$/, 'the error');
my $addresses = join ', ', sort map { $_->address } @new;
like($result->{detail}, qr/^Host "[ab]" has left these nodes for: (?:redis:\/\/)?\Q$addresses\E\.$/, 'names the nodes');
like($result->{hint}, qr/^If host "[ab]" is right, set redlock\.nodes to its nodes\. If this host is right, .* delete the marks/,
	'and what to do');
wait_until(sub { log_of($host{late}) =~ /WARNING:  redlock\.nodes names old nodes that the hosts have left, so this host takes no locks/ },
	'so does the log');
my ($metrics) = slurp_file('monitoring/metrics.sql') =~ /^-- query redlock_hosts .*?\n(SELECT.*?);\n/ms;
is($host{$_}->safe_psql('postgres', "SELECT conflicting, refusing FROM ($metrics) m"), $_ eq 'late' ? '0|1' : '0|0',
	"the metrics of $_ tell whether it takes locks") foreach sort keys %host;
replace_broker($host{late});
is(try_on($host{late})->{state}, '55000', 'nor does the next broker get one') foreach 1 .. 5;
$_->restart foreach @old;
wait_nodes_ready($host{late}, 3);
wait_beats(host_id($host{late}), $old[0]);
is(try_on($host{late})->{state}, '55000', 'nor when the old nodes have restarted');

give($host{late}, \@new, []);
wait_until(sub { $result = try_on($host{late}); ($result->{out} // '') eq 'f' }, 'with the new nodes it asks, and the lock is held');
$holder->quit;
wait_until(sub { ($result = try_on($host{late}))->{out} eq 't' }, 'and gets it when it is free');

# ---- the operator declares that the nodes were not left ----

$host{late}->stop;
give($host{late}, \@old, []);
$host{late}->start;
wait_until(sub { try_on($host{late})->{state} eq '55000' }, 'it starts with the old nodes again');
$_->cli('EVAL', q{return redis.call('DEL', 'redlock:\0hosts\0mark:redlock:')}, 0) foreach @old;
wait_until(sub { try_on($host{late})->{state} eq '' }, 'without the marks it gets locks');
$host{late}->stop;

# ---- the way back ----

replace(\@new, \@old, @host{qw(a b)});
is(try_on($_)->{state}, '', $_->name . ' gets locks by the first nodes') foreach @host{qw(a b)};
give($host{late}, \@new, []);
$host{late}->start;
wait_until(sub { try_on($host{late})->{state} eq '55000' }, 'now the others were left');
give($host{late}, \@old, []);
wait_until(sub { try_on($host{late})->{state} eq '' }, 'and the first ones are in use');

# ---- then node by node ----

my @four = (@old, $new[0]);
my @then = @four[ 1 .. 3 ];
foreach my $list (\@four, \@then)
{
	give($_, $list, []) foreach values %host;
	foreach my $host (values %host)
	{
		wait_until(sub { is_so($host, 'SELECT count(*) = ' . @$list . " FROM redlock_nodes WHERE state = 'ready' AND list = 'now'") },
			$host->name . ' has another list');
		wait_until(sub { try_on($host)->{state} eq '' }, $host->name . ' gets locks');
	}
}
$host{late}->stop;
give($host{late}, \@old, []);
wait_until(
	sub { (my $mark = $old[0]->cli('EVAL', q{return redis.call('GET', 'redlock:\0hosts\0mark:redlock:')}, 0)) ne '' },
	'the first nodes have a mark');
$host{late}->start;
wait_until(sub { try_on($host{late})->{state} eq '55000' }, 'a list that was replaced node by node was left, too', 30);
give($host{late}, \@then, []);
wait_until(sub { try_on($host{late})->{state} eq '' }, 'the present one is not');

# ---- a wrong list on one host ----

my $down = redis_node();
my $count_of = q{return string.match(redis.call('GET', 'redlock:\0hosts\0mark:redlock:'), '^%d+%z%x+%z(%d+)%z')};
wait_until(sub { join(' ', map { $_->cli('EVAL', $count_of, 0) } @then) eq '3 3 3' }, 'the present list is marked at each node');
my $marks_then = join ' ', map { $_->cli('EVAL', q{return redis.call('GET', 'redlock:\0hosts\0mark:redlock:')}, 0) } @then;
$down->kill9;
give($host{a}, [ @then[ 0, 1 ], $down ], []);
wait_until(sub { log_of($host{a}) =~ /redlock\.nodes was changed too much at once/ }, 'a host exchanges a node, by mistake');
foreach my $list ([], [ @then, $down ], [ @then[ 0, 1 ], $down ], \@then)
{
	give($host{a}, $list, []) if @$list;
	wait_beats(host_id($host{a}), $then[0]);
	is(try_on($host{b})->{state}, '', 'the other host goes on');
	is(join(' ', map { $_->cli('EVAL', q{return redis.call('GET', 'redlock:\0hosts\0mark:redlock:')}, 0) } @then), $marks_then,
		'and the marks are as before');
}
wait_until(sub { try_on($host{a})->{state} eq '' }, 'with the former list the first host takes locks, too');

# ---- two hosts with the same name ----

is($host{a}->safe_psql('postgres', 'SELECT bool_or(same_name) FROM redlock_hosts'), 'f', 'each host has a name of its own');
$host{late}->stop;
{
	local $host{late}{_name} = 'b'; # becomes the server's cluster_name
	$host{late}->start;
}
my $warning = qr/WARNING:  another redlock host is called "b", too\n.*DETAIL:  Its id is [0-9a-f]{16}\./;
wait_until(sub { log_of($_) =~ $warning }, $_->name . ': its log says that another host has its name', 60) foreach @host{qw(late b)};
unlike(log_of($host{a}), qr/another redlock host is called/, 'the log of a third one does not');
is($host{a}->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts WHERE same_name'), '2', 'the view has both');
wait_beats(host_id($host{a}), $old[1]) foreach 1, 2;
is(scalar(() = log_of($host{b}) =~ /$warning/g), 1, 'the log has it once');

# a restart after a crash is no second host
my $calls = scalar(() = log_of($host{a}) =~ /another redlock host/g);
$host{a}->stop('immediate');
$host{a}->start;
wait_beats(host_id($host{a}), $old[1]) foreach 1, 2;
is(scalar(() = log_of($host{a}) =~ /another redlock host/g), $calls, 'a host that has crashed is not taken for another');

done_testing();

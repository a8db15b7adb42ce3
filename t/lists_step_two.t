# redlock.nodes_next takes the place of redlock.nodes, see docs/how-to/replace-nodes.md, while
# another host has only the old nodes, or has leases at the old nodes alone.  t/lists_left_behind.t
# has the plain cases.
#
# Protects from: two holders of a lock, when a host has left the old nodes without knowing of the
# other host.  The cases: the old nodes are out of reach, with the same broker or the next broker;
# the other host reaches the old nodes only later; the other host hangs, and is forgotten before its
# leases end; nodes have too many entries for an answer; a step follows the last step at once; a
# lease is not yet at the new nodes, or a kept key is at the old nodes.  Also from hosts never
# leaving the old nodes although nothing is in the way.
#
# Takes over a minute: a node's answer counts for 45 s, so time itself is a subject.  That case
# waits while the others are tested.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my $TOLD_COUNTS_S = 45;
my $HOSTS = "redlock:\\0hosts";
my $is_new = "SELECT count(*) = 3 AND bool_and(list = 'now') FROM redlock_nodes WHERE list <> 'leaving'";
my $is_settled =
  "SELECT unsettled = 0 AND (SELECT count(*) FROM redlock_nodes WHERE list = 'next') = 3 FROM redlock_stats";

# Two hosts with three old nodes, and the new nodes.  With "cut", the first host reaches each old
# node by a proxy, which can cut the node off.
sub two_hosts
{
	my ($name, $cut, $conf) = @_;
	my @old = redis_nodes(3);
	my %change = (name => $name, old => \@old, new => [ redis_nodes(3) ]);

	$change{via} = [ $cut ? map { HostileNode->new($_) } @old : @old ];
	$change{a} = redlock_cluster("a_$name", nodes => $change{via}, conf => $conf // "redlock.max_ttl = '30s'");
	$change{b} = redlock_cluster("b_$name", nodes => \@old, conf => $conf // "redlock.max_ttl = '30s'");
	wait_until(
		sub { $change{a}->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts WHERE nodes = 3') eq '2' },
		"$name: the hosts see each other");
	$change{id} = $change{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'a_$name'");
	return \%change;
}

sub is_so { return $_[0]->safe_psql('postgres', $_[1]) eq 't'; }

sub waits_for
{
	my ($host, $other) = @_;
	return slurp_file($host->logfile) =~ /redlock\.nodes is not yet in force\n.*Host "$other" /;
}

sub tries { return psql_result($_[0], "SELECT redlock_try('job')")->{out}; }

# Checks that the session holds the lock; the other host keeps the old nodes, and does not get the
# lock.
sub excludes
{
	my ($session, $other, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	isnt(tries($other), 't', "$what: there are no two holders");
	is($session->query("SELECT redlock_check('job') > '0'"), 't', "$what: one session holds the lock");
	ok(!is_so($other, $is_new), "$what: the other host has not left the old nodes");
	return;
}

# Gives host a both lists, and then the order to leave the old nodes, while host b has only the old
# nodes, and holds the lock.
sub held_up
{
	my ($change) = @_;
	my ($name, $a, $b) = @$change{qw(name a b)};

	set_node_lists($a, $change->{via}, $change->{new});
	wait_until(sub { is_so($a, $is_settled) }, "$name: a is settled, b has got nothing");
	set_node_lists($a, $change->{new}, []);
	wait_until(sub { waits_for($a, "b_$name") || is_so($a, $is_new) }, "$name: a is to leave the old nodes");
	$change->{session} = session($b);
	is($change->{session}->query("SELECT redlock_try('job', scope => 'session')"), 't', "$name: b has the lock");
	excludes($change->{session}, $a, "$name, at first");
	return;
}

# Lets host a reach the old nodes again.
sub are_back
{
	my ($change) = @_;

	$_->start foreach @{ $change->{via} };
	wait_until(
		sub { is_so($change->{a}, "SELECT count(*) = 6 FROM redlock_nodes WHERE state = 'ready'") || is_so($change->{a}, $is_new) },
		"$change->{name}: the old nodes are back");
	return;
}

sub comes_back
{
	my ($change) = @_;

	are_back($change);
	excludes($change->{session}, $change->{a}, "$change->{name}, when the old nodes are back");
	return;
}

# Stops the broker of host b.
sub stops
{
	my ($change) = @_;

	$change->{stopped} = broker_pid($change->{b});
	kill 'STOP', $change->{stopped};
	return;
}

# Gives host b both lists: host a leaves the old nodes.
sub goes_on
{
	my ($change) = @_;

	set_node_lists($change->{b}, $change->{old}, $change->{new});
	wait_until(sub { is_so($change->{a}, $is_new) }, "$change->{name}: when b has both lists, a leaves the old nodes");
	is(tries($change->{a}), 'f', "$change->{name}: and does not get the lock");
	finish($change);
	return;
}

sub finish
{
	my ($change) = @_;

	$change->{session}->quit;
	$change->{$_}->stop foreach qw(a b);
	return;
}

# Runs a script at the old nodes, with "now", "facts" (host a's facts) and "own" (the words of host
# a's settings).
sub write_at_old
{
	my ($change, $script) = @_;

	foreach my $node (@{ $change->{old} })
	{
		my $reply = $node->cli('EVAL', <<LUA, 0);
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts = redis.call('HGET', '$HOSTS\\0facts', '$change->{id}')
local own = {}
for word in string.gmatch(redis.call('GET', '$HOSTS\\0config:' .. string.sub(facts, 1, 40)), '([^%z]*)%z') do
	own[#own + 1] = word
end
$script
return 'done'
LUA
		is($reply, 'done', 'entries are written') if $reply ne 'done';
	}
	return;
}

# The nodes of these pairs run long enough before their tests to know all hosts.
my %told = map { $_ => two_hosts($_) } qw(agree garbage);

# ---- the old nodes are cut off until their answers no longer count: the end has the checks ----

my $cut = two_hosts('cut', 1);
held_up($cut);
$_->stop foreach @{ $cut->{via} };

# ---- the same, and host b comes back later ----

my $late = two_hosts('late', 1);
held_up($late);
$_->stop foreach @{ $late->{via} };
stops($late);

# ---- host b hangs, with a lease of the longest validity ----

my $still = two_hosts('still', 0, "redlock.max_ttl = '150s'\nredlock.ttl = '150s'");
held_up($still);
my $c = redlock_cluster('c_still', nodes => $still->{old}, conf => "redlock.max_ttl = '150s'");
stops($still);
my $cut_at = time;

# ---- the old nodes are cut off, and the next broker has no answer from the old nodes ----

my $unheard = two_hosts('unheard', 1);
held_up($unheard);
$_->stop foreach @{ $unheard->{via} };
replace_broker($unheard->{a});
wait_beats($unheard->{id}, $unheard->{new}[0]) foreach 1, 2;
excludes($unheard->{session}, $unheard->{a}, 'unheard, the next broker');
comes_back($unheard);

# ---- a lease is not yet at the new nodes ----

my $unsettled = two_hosts('unsettled');
$unsettled->{session} = session($unsettled->{a});
is($unsettled->{session}->query("SELECT redlock_try('job', scope => 'session')"), 't', 'unsettled: a has the lock');
set_node_lists($unsettled->{a}, $unsettled->{old}, [ map { $_->url(password => 'wrong') } @{ $unsettled->{new} } ]);
wait_until(
	sub { is_so($unsettled->{a}, "SELECT unsettled = 1 AND (SELECT count(*) FROM redlock_nodes WHERE list = 'next') = 3 FROM redlock_stats") },
	'unsettled: a has both lists, and its lease is at the old nodes alone');
set_node_lists($unsettled->{b}, $unsettled->{old}, $unsettled->{new});
wait_until(sub { is_so($unsettled->{b}, $is_settled) }, 'unsettled: b is settled');
wait_until(sub { is_so($unsettled->{b}, "SELECT NOT settled FROM redlock_hosts WHERE name = 'a_unsettled'") },
	'unsettled: b knows that a is not');
set_node_lists($unsettled->{b}, $unsettled->{new}, []);
wait_until(sub { waits_for($unsettled->{b}, 'a_unsettled') || is_so($unsettled->{b}, $is_new) },
	'unsettled: b is to leave the old nodes');
like(slurp_file($unsettled->{b}->logfile),
	qr/DETAIL:  Host "a_unsettled" \(id [0-9a-f]{16}\) holds or keeps locks only at nodes of the list that this host is about to leave\..*\n.*HINT:  Wait until redlock_hosts\.settled of that host is true\./,
	'unsettled: the log says that a has both lists, and what to do');
excludes($unsettled->{session}, $unsettled->{b}, 'unsettled');

# ---- a key is kept at the old nodes alone ----

my $kept = two_hosts('kept');
psql_result($kept->{b}, "SELECT redlock_acquire('job', scope => 'session', hold_at_least => '1 hour'), redlock_release('job')");
foreach my $host (@$kept{qw(a b)})
{
	set_node_lists($host, $kept->{old}, $kept->{new});
	wait_until(sub { is_so($host, $is_settled) }, 'kept: both lists');
}
set_node_lists($kept->{a}, $kept->{new}, []);
wait_until(sub { waits_for($kept->{a}, 'b_kept') || is_so($kept->{a}, $is_new) }, 'kept: a is to leave the old nodes');
wait_beats($kept->{id}, $kept->{old}[0]);
ok(!is_so($kept->{a}, $is_new), 'kept: a has not left the old nodes');
is(tries($kept->{a}), 'f', 'kept: and does not get the lock');
$kept->{$_}->stop foreach qw(a b);

# ---- a step follows the last step at once ----

# The last answers are older than the difference between a and b, so do not show the difference.
my $fast = two_hosts('fast');
my $looks = session($fast->{a});
$fast->{session} = session($fast->{b});
is($fast->{session}->query("SELECT redlock_try('job', scope => 'session')"), 't', 'fast: b has the lock');
my $before = last_beat($fast->{id}, $fast->{old}[0]);
$fast->{a}->reload;
wait_until(sub { last_beat($fast->{id}, $fast->{old}[0]) ne $before }, 'fast: a beat, and the next one is not due yet');
set_node_lists($fast->{a}, $fast->{old}, $fast->{new});
wait_until(sub { $looks->query("SELECT count(*) FROM redlock_nodes WHERE list = 'next' AND state = 'ready'") eq '3' },
	'fast: a has both lists');
set_node_lists($fast->{a}, $fast->{new}, []);
wait_until(sub { waits_for($fast->{a}, 'b_fast') || is_so($fast->{a}, $is_new) }, 'fast: a is to leave the old nodes');
excludes($fast->{session}, $fast->{a}, 'fast');
$looks->quit;

# ---- the old nodes have too many entries for an answer, and leave b out ----

# configurations without a host; hosts that agree with a, and call a node by other addresses
my %more = (garbage => <<"LUA", agree => <<"LUA");
for i = 1, 40 do
	redis.call('ZADD', '$HOSTS\\0configs:redlock:', now + 5000, 'garbage' .. i)
end
LUA
for i = 1, 40 do
	local words = {unpack(own)}
	words[6] = 'name' .. i
	local id = string.format('%016x', i)
	local text = table.concat(words, '\\0') .. '\\0'
	local config = redis.sha1hex(text)
	redis.call('SET', '$HOSTS\\0config:' .. config, text)
	redis.call('ZADD', '$HOSTS', now, id)
	redis.call('HSET', '$HOSTS\\0facts', id, config .. string.sub(facts, 41))
	redis.call('ZADD', '$HOSTS\\0configs:redlock:', now, config)
	redis.call('ZADD', '$HOSTS\\0users:' .. config, now, id)
end
LUA

foreach my $what (sort keys %more)
{
	my $change = $told{$what};
	my $beats = 0;
	my $beat = '';

	held_up($change);
	wait_until(
		sub {
			write_at_old($change, $more{$what});
			my $last = last_beat($change->{id}, $change->{old}[0]);
			$beats++ if $last ne $beat;
			$beat = $last;
			return $beats > 5 || is_so($change->{a}, $is_new);
		},
		"$what: a has said several times that it is there, and was told of others");
	excludes($change->{session}, $change->{a}, $what);
}

# ---- the old nodes are cut off for long ----

wait_until(sub { tries($cut->{a}) eq 't' || time > $cut_at + $TOLD_COUNTS_S + 3 }, 'cut: what the old nodes told does not count any more');
excludes($cut->{session}, $cut->{a}, 'cut');
comes_back($cut);

my @gone = map { "SELECT NOT EXISTS (SELECT FROM redlock_hosts WHERE name = 'b_$_')" } 'still', 'late';
wait_until(sub { is_so($still->{a}, $gone[0]) }, 'still: b is forgotten');
wait_beats($still->{id}, $still->{old}[0]);
# of two hosts with the same lists, nodes name a single host: host c, which now follows host a
set_node_lists($c, $still->{old}, $still->{new});
wait_until(sub { is_so($c, $is_settled) }, 'still: c follows');
wait_until(sub { is_so($still->{a}, "SELECT settled FROM redlock_hosts WHERE name = 'c_still'") }, 'still: as a knows');
wait_beats($still->{id}, $still->{old}[0]);
excludes($still->{session}, $still->{a}, 'still') foreach 1 .. 5;
# neither the next broker nor a repeated step leaves the old nodes
replace_broker($still->{a});
wait_beats($still->{id}, $still->{old}[0]) foreach 1, 2;
excludes($still->{session}, $still->{a}, 'still, the next broker') foreach 1 .. 5;
set_node_lists($still->{a}, $still->{old}, $still->{new});
wait_until(sub { is_so($still->{a}, $is_settled) }, 'still: the step is taken back');
set_node_lists($still->{a}, $still->{new}, []);
wait_beats($still->{id}, $still->{old}[0]) foreach 1, 2;
excludes($still->{session}, $still->{a}, 'still, the step again') foreach 1 .. 5;
kill 'CONT', $still->{stopped};
finish($still);
$c->stop;

are_back($late);
wait_until(sub { is_so($late->{a}, $gone[1]) }, 'late: b is forgotten');
wait_beats($late->{id}, $late->{old}[0]) foreach 1, 2;
ok(!is_so($late->{a}, $is_new), 'late: a has not left the old nodes') foreach 1 .. 20;
kill 'CONT', $late->{stopped};
wait_until(sub { !is_so($late->{a}, $gone[1]) }, 'late: b is back');
ok(!is_so($late->{a}, $is_new), 'late: a has not left the old nodes, which b has alone');

# ---- nothing is in the way any more ----

# Until the entries of "agree" expire, the nodes' answers say that there may be more hosts.
finish($told{agree});
goes_on($_) foreach $unheard, $told{garbage}, $fast, $cut;
set_node_lists($unsettled->{a}, $unsettled->{old}, $unsettled->{new});
wait_until(sub { is_so($unsettled->{b}, $is_new) }, 'unsettled: when the lease is at the new nodes, b leaves the old ones');
is(tries($unsettled->{b}), 'f', 'unsettled: and does not get the lock');
finish($unsettled);

set_node_lists($late->{b}, $late->{old}, $late->{new});
wait_until(sub { is_so($late->{a}, $is_new) }, 'late: when b has both lists, a leaves the old nodes');
finish($late);

done_testing();

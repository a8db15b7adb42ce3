# redlock_force_release: an administrator on one host releases a lock of another host.
#
# Protects from: a holder going on, and committing; a late renewal creating the key again; a next
# holder with a smaller token; waiters not woken; a release by a minority reported as done; a call
# by a role without the right, or without a trace in the log.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

# renewals come after 20 s: any earlier effect comes from a message
my @nodes = redis_nodes(5);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $also_a, $on_b, $also_b) = map { session($_) } $host_a, $host_a, $host_b, $host_b;

sub force
{
	my ($name) = @_;
	return $on_b->query("SELECT redlock_force_release('$name')");
}

# States of a lock in redlock_locks of a host.
sub states
{
	my ($host, $name) = @_;
	return $host->safe_psql('postgres',
		"SELECT coalesce(string_agg(state, ' ' ORDER BY state), '') FROM redlock_locks WHERE resource = '$name' AND state <> 'releasing'");
}

# Returns the number of nodes with a further key of the lock.
sub further
{
	my ($name, $what) = @_;
	return scalar grep { $_->cli('EVAL', "return redis.call('EXISTS', 'redlock:$name\\0$what')", 0) } @nodes;
}

# ---- a holder at work ----

$on_a->query('CREATE TABLE work (id int)');
$on_a->query("BEGIN; SELECT redlock_acquire('job')");
my $token = $on_a->query("SELECT redlock_token('job')");
$on_a->query('INSERT INTO work VALUES (1)');
$also_b->send("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { states($host_b, 'job') eq 'waiting' }, 'another host waits');
like(force('job'), qr/^cluster="a" host="[^"]+" database="postgres" pid=\d+ user="[^"]+"$/, 'the call tells the former holder');
my $next = $also_b->result->{out};
cmp_ok($next, '>', $token, 'the waiter gets the lock, with a larger token');
wait_until(sub { states($host_a, 'job') eq 'lost' }, 'the holder learns of it before its next renewal', 5);
my $result = $on_a->run('COMMIT');
is($result->{state}, '40001', 'and cannot commit');
is($host_a->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'its work is undone');
is($on_b->query("SELECT cluster_name FROM redlock_holder('job')"), 'b', 'the next holder keeps the lock');
like(slurp_file($host_b->logfile), qr/LOG:  redlock "job" is released by force by role "\w+"\n.*DETAIL:  It is held by: cluster="a"/, 'the log tells the role and the holder');
$also_b->query("SELECT redlock_release('job')");

# ---- a late renewal ----

$on_a->query("SELECT redlock_acquire('late', scope => 'session')");
$token = $on_a->query("SELECT redlock_token('late')");
my $broker = broker_pid($host_a);
kill 'STOP', $broker;
force('late');
is(key_count('redlock:late', @nodes), 0, 'the keys are gone while the broker of the holder is stopped');
kill 'CONT', $broker;
wait_until(sub { states($host_a, 'late') eq 'lost' }, 'its renewal is refused');
is(key_count('redlock:late', @nodes), 0, 'and brings no key back');
is($on_a->run("SELECT redlock_check('late')")->{state}, '40001', 'the session hears of it');
cmp_ok($also_b->query("SELECT redlock_acquire('late', scope => 'session')"), '>', $token, 'the next token is larger');
$on_a->query("SELECT redlock_release('late')");
is($also_b->query("SELECT redlock_check('late') > '0'"), 't', 'the release of the former holder harms nobody');

# the lock of a session of the same host
is(force('late') =~ /cluster="b"/, 1, 'a lock of the same host');
wait_until(sub { states($host_b, 'late') eq 'lost' }, 'is lost as well', 5);
$also_b->query("SELECT redlock_release('late')");

# ---- shared, permits, idle, detached ----

$_->query("SELECT redlock_acquire('doc', scope => 'session', mode => 'shared')") foreach $on_a, $also_b;
like(force('doc'), qr/cluster="[ab]"/, 'a shared lock');
wait_until(sub { states($_, 'doc') eq 'lost' }, 'each reader loses it', 5) foreach $host_a, $host_b;
is($on_b->query("SELECT redlock_is_locked('doc')"), 'f', 'it is free');
is(further('doc', 'readers'), 0, 'without readers');
is(further('doc', 'token'), 5, 'and with its counter');
$_->query("SELECT redlock_release('doc')") foreach $on_a, $also_b;

$on_a->query("SELECT redlock_acquire('damaged', scope => 'session', mode => 'shared', ttl => '60 s')");
foreach my $id ('a' x 2000, 'a' x 15)
{
	$_->cli('EVAL', "return redis.call('HSET', 'redlock:damaged\\0readers', ARGV[1], ARGV[2])", 0, length $id, "123:$id:1:99999999999999") foreach @nodes;
}
like(force('damaged'), qr/cluster="a"/, 'a shared lock with entries of no host beside the reader');
wait_until(sub { states($host_a, 'damaged') eq 'lost' }, 'the reader loses it', 5);
$on_a->query("SELECT redlock_release('damaged')");

$_->query("SELECT redlock_acquire('pool', scope => 'session', permits => 3)") foreach $on_a, $also_a, $also_b;
like(force('pool'), qr/^permits=3 /, 'all permits of a lock');
wait_until(sub { states($host_a, 'pool') eq 'lost lost' && states($host_b, 'pool') eq 'lost' }, 'are lost', 5);
is($on_b->query("SELECT state FROM redlock_holder('pool')"), 'free', 'the lock is free');
$_->query("SELECT redlock_release('pool')") foreach $on_a, $also_a, $also_b;
is($on_b->query("SELECT redlock_try('pool', permits => 4)"), 't', 'also with another number of permits');

$on_a->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '10 min'); SELECT redlock_release('idle')");
is(states($host_a, 'idle'), 'idle', 'an idle lease');
force('idle');
wait_until(sub { states($host_a, 'idle') eq '' }, 'is gone', 5);

$on_a->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
force('detached');
wait_until(sub { states($host_a, 'detached') !~ /held/ }, 'so is a detached lock', 5);

# ---- kept, and plain clients ----

$on_a->query("SELECT redlock_acquire('kept', scope => 'session', hold_at_least => '1 h'); SELECT redlock_release('kept')");
wait_until(sub { $on_b->query("SELECT state, nodes FROM redlock_holder('kept')") eq 'kept|5' }, 'a kept lock');
force('kept');
is($on_b->query("SELECT redlock_try('kept')"), 't', 'can be acquired');

$_->cli('SET', 'redlock:plain', 'mine') foreach @nodes;
is(force('plain'), 'mine', "a plain client's lock");
is(key_count('redlock:plain', @nodes), 0, 'is deleted');
is(further('plain', 'token'), 0, 'without a counter');
$_->cli('HSET', 'redlock:hash', 'x', 1) foreach @nodes;
like(force('hash'), qr/^a key /, 'a key of another type');
is(key_count('redlock:hash', @nodes), 0, 'too');
is(force('nothing'), '', 'without a key the result is null');

# ---- too few nodes ----

$on_a->query("SELECT redlock_acquire('few', scope => 'session')");
$nodes[$_]->pause foreach 3, 4;
force('few');
wait_until(sub { states($host_a, 'few') eq 'lost' }, 'three of five nodes suffice', 20);
is($on_b->query("SELECT state, nodes FROM redlock_holder('few')"), 'free|0', 'and the lock is free');
$on_a->query("SELECT redlock_release('few')");
$nodes[2]->pause;
$result = $on_b->run("SELECT redlock_force_release('few')");
is($result->{state}, '08006', 'two are too few');
$nodes[$_]->resume foreach 2 .. 4;
wait_nodes_ready($_, 5) foreach $host_a, $host_b;

# a stranger's key beside the holder's keys
$on_a->query("SELECT redlock_acquire('beside', scope => 'session')");
$nodes[0]->cli('SET', 'redlock:beside', 'a plain client');
like(force('beside'), qr/^cluster="a"/, 'the holder at a quorum is named');
is(key_count('redlock:beside', @nodes), 1, 'only the keys of the holder are deleted');
wait_until(sub { states($host_a, 'beside') eq 'lost' }, 'and the holder loses the lease');
$on_a->query("SELECT redlock_release('beside')");
is(force('beside'), 'a plain client', 'a key at one node, where no quorum shows a holder,');
is(key_count('redlock:beside', @nodes), 0, '... is deleted');

# the nodes' user may not delete
$on_a->query("SELECT redlock_acquire('stays', scope => 'session')");
$_->cli('ACL', 'SETUSER', 'default', '-del') foreach @nodes[ 0 .. 2 ];
$result = $on_b->run("SELECT redlock_force_release('stays')");
is($result->{state}, '08006', 'where the nodes refuse, it is an error');
like($result->{message}, qr/^redlock "stays" is not released at a quorum of nodes$/, 'which says so');
my $address = $nodes[0]->address;
like($result->{detail}, qr/^The key may remain at: .*\Q$address\E: \S/, 'and names them');
$_->cli('ACL', 'SETUSER', 'default', '+del') foreach @nodes[ 0 .. 2 ];
force('stays');
is(key_count('redlock:stays', @nodes), 0, 'later it succeeds');

# ---- the broker ends while it looks at the lock ----

$on_a->query("SELECT redlock_acquire('twice', scope => 'session')");
$_->pause foreach @nodes;
$on_b->send("SELECT redlock_force_release('twice')");
wait_until(sub { $host_b->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $on_b->pid) eq 'Extension' }, 'a session waits');
replace_broker($host_b);
$_->resume foreach @nodes;
like($on_b->result->{out}, qr/^cluster="a"/, 'the next broker asks again');
wait_until(sub { states($host_a, 'twice') eq 'lost' }, 'and the lock is released');

# ---- rights ----

$on_b->query('CREATE ROLE weak; SET ROLE weak');
is($on_b->run("SELECT redlock_force_release('job')")->{state}, '42501', 'it is not for all roles');
is($on_b->run("SELECT * FROM redlock_inspect('job')")->{state}, '42501', 'nor is redlock_inspect');
is($on_b->query("SELECT state FROM redlock_holder('job')"), 'free', 'redlock_holder is');
$on_b->query('RESET ROLE; GRANT EXECUTE ON FUNCTION redlock_force_release TO weak; SET ROLE weak');
is($on_b->run("SELECT redlock_force_release('job')")->{state}, '', 'it can be granted');
like(slurp_file($host_b->logfile), qr/redlock "job" is released by force by role "weak"/, 'and is logged');

$_->quit foreach $on_a, $also_a, $on_b, $also_b;
done_testing();

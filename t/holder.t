# redlock_holder, redlock_is_locked and redlock_inspect tell the holder of a lock, on a host other
# than the holder's.
#
# Protects from: an answer by a minority; a held lock shown as free, because nodes do not answer, or
# have forgotten; a look acquiring the lock, waiting for a holder, or changing a key; a plain
# client's value taken for a host's; an endless call while nodes or the broker are stopped.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my $conf  = "redlock.ttl = '20s'\nredlock.node_timeout = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $also_a, $on_b) = map { session($_) } $host_a, $host_a, $host_b;
my ($id_a, $id_b) = map { host_id($_) } $host_a, $host_b;

# Columns of redlock_holder, as on_b sees the lock.
sub holder
{
	my ($columns, $name) = @_;
	return $on_b->query("SELECT $columns FROM redlock_holder('$name')");
}

sub locked
{
	my ($name) = @_;
	return $on_b->query("SELECT redlock_is_locked('$name')");
}

sub holder_is
{
	my ($name, $columns, $expected, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(holder($columns, $name), $expected, $what);
}

sub keys_of
{
	my ($name) = @_;
	return join ' ', map { $_->cli('--raw', 'GET', "redlock:$name") } @nodes;
}

# ---- free ----

holder_is('none', 'state, mode, host, pid, held_by, ttl, nodes, of_nodes', 'free||||||0|5', 'a lock that nobody has is free');
is(locked('none'), 'f', 'and not locked');
is($on_b->query("SELECT count(*), count(value), count(counter), count(error), count(marker) FROM redlock_inspect('none')"),
	'5|0|0|0|5', 'each node tells of no key');
is(keys_of('none'), '    ', 'nothing is written');

# ---- held ----

my $earlier = $on_a->query('SELECT clock_timestamp()');
$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
my $later = $on_a->query('SELECT clock_timestamp()');
my $before = keys_of('job');
holder_is('job', "state, mode, host <> '', cluster_name, database, role = session_user, pid, detached, host_id, may_be_idle, kept_until, nodes, of_nodes",
	'held|exclusive|t|a|postgres|t|' . $on_a->pid . "|f|$id_a|f||5|5", 'another host tells the holder');
holder_is('job', "ttl > '5 s' AND ttl <= '20 s', permits, permits_taken, reader_hosts", 't|||', 'and its time to live');
holder_is('job', "since BETWEEN '$earlier' AND '$later'", 't', 'since when');
like(holder('held_by', 'job'), qr/^cluster="a" host="[^"]+" database="postgres" pid=\d+ user="[^"]+"$/, 'as it describes itself');
is(locked('job'), 't', 'the lock is locked');
is($on_a->query("SELECT pid = pg_backend_pid() FROM redlock_holder('job')"), 't', 'the holder sees itself');
is(keys_of('job'), $before, 'looking changes no key');
is($on_b->query("SELECT count(*) FROM redlock_locks WHERE resource = 'job'"), 0, 'and asks for no lock');
is($on_b->query("SELECT count(*), count(DISTINCT value), bool_and(ttl <= '20 s'), min(counter) = max(counter), count(error) FROM redlock_inspect('job')"),
	'5|1|t|t|0', 'each node tells its key');
is($on_b->query("SELECT count(*) FROM redlock_inspect('job') i JOIN redlock_nodes USING (node)"), 5, 'by the names of redlock_nodes');
is($on_a->query("SELECT min(counter) >= redlock_token('job') FROM redlock_inspect('job')"), 't', 'a counter that is not less than the token');
{
	# as after a holder on a host whose clock is ahead
	my $ahead = q{local t = redis.call('TIME'); redis.call('SET', KEYS[1] .. '\0token', string.format('%.0f', (t[1] + 1200) * 1000000), 'PX', 7200000)};

	$_->cli('EVAL', $ahead, 1, 'redlock:ahead') foreach @nodes;
	$on_a->query("SELECT redlock_acquire('ahead', scope => 'session')");
	holder_is('ahead', 'state, since', 'held|', 'tokens ahead of the clock do not tell since when');
	$on_a->query("SELECT redlock_release('ahead')");
}
{
	my $in_block = $on_b->query("BEGIN; SELECT redlock_is_locked('job'); COMMIT");
	is($in_block, 't', 'in a transaction block');
}
is($on_b->run('SELECT redlock_holder(NULL)')->{state}, '22004', 'a name is needed');

# ---- names with odd characters ----

my $odd = "\xc3\xa9 '' \"x\" \\ %s *?";
$on_a->query('CREATE ROLE "a""b\\c d" LOGIN SUPERUSER');
$on_a->query('SET SESSION AUTHORIZATION "a""b\\c d"');
$on_a->query("SELECT redlock_acquire('$odd', scope => 'session')");
holder_is($odd, 'state, role, pid', 'held|a"b\\c d|' . $on_a->pid, 'a lock and a role with odd names');
$on_a->query("SELECT redlock_release('$odd')");
wait_until(sub { holder('state, role', $odd) eq 'free|' }, 'free again');
$on_a->query('RESET SESSION AUTHORIZATION');

# ---- idle, detached, kept ----

$on_a->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '1 min')");
holder_is('idle', 'state, may_be_idle, pid', 'held|t|' . $on_a->pid, 'the lock may be idle');
$on_a->query("SELECT redlock_release('idle')");
holder_is('idle', 'state, may_be_idle', 'held|t', 'the nodes do not know whether it is');

my $token = $on_a->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '1 min')");
holder_is('detached', 'state, pid, detached, cluster_name, role = session_user', 'held||t|a|t', 'a detached lock has no process');
$on_a->query("SELECT redlock_release('detached', $token)");

my $kept_from = $on_a->query('SELECT clock_timestamp()');
$on_a->query("SELECT redlock_acquire('kept', scope => 'session', hold_at_least => '1 min')");
holder_is('kept', 'state, kept_until', 'held|', 'a lock with hold_at_least is held');
$on_a->query("SELECT redlock_release('kept')");
wait_until(sub { holder('nodes', 'kept') == 5 && holder('state', 'kept') eq 'kept' }, 'and kept after its release');
holder_is('kept', "kept_until > timestamptz '$kept_from' + '59 s' AND kept_until <= clock_timestamp() + '60 s', cluster_name, may_be_idle", 't|a|f', 'until a time');
is(locked('kept'), 't', 'nobody can acquire it');

# ---- shared ----

$on_a->query("SELECT redlock_acquire('doc', scope => 'session', mode => 'shared')");
holder_is('doc', 'state, mode, cluster_name, pid, reader_hosts', "held|shared|a|" . $on_a->pid . "|{$id_a}", 'one reader is named');
$on_b->query("SELECT redlock_acquire('doc', scope => 'session', mode => 'shared')");
holder_is('doc', 'state, mode, host, pid, (SELECT array_agg(h ORDER BY h) FROM unnest(reader_hosts) h), nodes',
	'held|shared|||{' . join(',', sort $id_a, $id_b) . '}|5', 'of two hosts, each is');
like(holder('held_by', 'doc'), qr/^those who share it, last to join: cluster="b"/, 'beside the last to join');
$on_b->query("SELECT redlock_release('doc')");
wait_until(sub { holder('reader_hosts', 'doc') eq "{$id_a}" }, 'then one again');
$on_a->query("SELECT redlock_release('doc')");
wait_until(sub { holder('state', 'doc') eq 'free' }, 'and none');

# ---- permits ----

$on_a->query("SELECT redlock_acquire('pool', scope => 'session', permits => 3)");
$on_b->query("SELECT redlock_acquire('pool', scope => 'session', permits => 3)");
holder_is('pool', 'state, permits, permits_taken, pid, nodes', 'held|3|2||5', 'two of three permits are taken');
$on_b->query("SELECT redlock_release('pool')");
wait_until(sub { holder('permits_taken', 'pool') == 1 }, 'then one');
$on_a->query("SELECT redlock_release('pool')");
wait_until(sub { holder('state', 'pool') eq 'free' }, 'then none');

# ---- plain clients, and keys of other types ----

$_->cli('SET', 'redlock:plain', 'my secret', 'PX', 60000) foreach @nodes[ 0 .. 2 ];
holder_is('plain', "state, mode, held_by, host, pid, host_id, may_be_idle, nodes, of_nodes, ttl > '30 s'", 'held|exclusive|my secret|||||3|5|t', 'a plain client holds a lock');
$_->cli('SET', 'redlock:long', '0123456789abcdeffedcba9876543210:000000001:00c0ffee00c0ffee host="' . "\xc3\xa9" x 80 . '"') foreach @nodes;
holder_is('long', 'octet_length(host)', 158, "a stranger's long text is cut behind a character");
$nodes[2]->cli('SET', 'redlock:plain', 'another', 'PX', 60000);
holder_is('plain', 'state, mode, held_by, nodes, of_nodes', 'free|||2|5', 'no majority has one value');
is(locked('plain'), 'f', 'so nobody holds it');
$_->cli('SET', 'redlock:plain', 'for ever') foreach @nodes;
holder_is('plain', 'state, ttl', 'held|', 'a key without an end');
$_->cli('SET', 'redlock:plain', "a\x01b\xff" . 'x' x 400, 'PX', 60000) foreach @nodes;
like(holder('held_by', 'plain'), qr/^a\?b\?x+$/, 'a value of bytes is made fit for people');
$_->cli('HSET', 'redlock:hash', '01234567-89ab-cdef-0123-456789abcdef:17', 1) foreach @nodes;
holder_is('hash', 'state, held_by', 'held|a Redisson lock of 01234567-89ab-cdef-0123-456789abcdef:17', 'a Redisson lock');
is($on_b->query("SELECT count(*) FROM redlock_inspect('hash') WHERE value ~ '^a Redisson'"), 5, 'at each node');

# ---- nodes are gone ----

$nodes[0]->cli('DEL', 'redlock:job');
holder_is('job', 'state, nodes', 'held|4', 'a node lacks the key');
$nodes[$_]->pause foreach 3, 4;
wait_until(sub { holder('state, nodes, of_nodes', 'job') eq 'unknown|2|5' }, 'two nodes that are silent decide')
  or diag(holder('*', 'job'));
my $result = $on_b->run("SELECT redlock_is_locked('job')");
is($result->{state}, '08006', 'so nobody knows');
like($result->{message}, qr/^the nodes do not tell whether redlock "job" is held$/, 'says the error');
like($result->{detail}, qr/^No usable answer from: \S+: .+; \S+: .+\.$/, 'and names the nodes');
holder_is('none', 'state', 'free', 'of a lock without a key the majority is sure');
is($on_b->query("SELECT count(error) FROM redlock_inspect('job')"), 2, 'redlock_inspect names their errors');
$nodes[2]->pause;
$result = $on_b->run("SELECT redlock_is_locked('job')");
is($result->{state}, '08006', 'without a quorum it is an error');
like($result->{message}, qr/^no quorum of redlock nodes could be reached to look up "job"$/, 'which says so');
is($on_b->run("SELECT redlock_holder('job')")->{state}, '08006', 'of either function');
is($on_b->query("SELECT count(*), count(error) FROM redlock_inspect('job')"), '5|3', 'redlock_inspect answers');
$nodes[$_]->resume foreach 2 .. 4;
wait_nodes_ready($host_b, 5);
wait_until(sub { holder('state, nodes', 'job') eq 'held|5' }, 'all is well again, and a renewal brings the key back');

# ---- a node that has forgotten proves nothing ----

$_->cli('FLUSHALL') foreach @nodes[ 0 .. 2 ];
isnt(holder('state', 'job'), 'free', 'a lock is not free because a majority has forgotten it');
wait_until(sub { my $seen = eval { holder('state', 'job') } // ''; $seen eq 'held' }, 'renewals bring it back') or diag(holder('*', 'job'));

# ---- the broker ----

my $broker = broker_pid($host_b);
kill 'STOP', $broker;
$on_b->send("SELECT redlock_is_locked('job')");
$result = $on_b->result;
kill 'CONT', $broker;
is($result->{state}, '55000', 'a stopped broker is an error');
like($result->{message}, qr/^the redlock broker has not looked up the lock in time$/, 'which says so');
is(locked('job'), 't', 'then it goes on');

# more sessions than places; cancelled sessions leave their places
kill 'STOP', $broker;
my @many = map { session($host_b) } 1 .. 12;
$_->send("SELECT redlock_is_locked('job')") foreach @many;
wait_until(sub { $host_b->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^SELECT redlock_is_locked' AND wait_event_type = 'Extension'") == 12 },
	'sessions wait for the broker');
$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @many[ 0 .. 3 ];
$host_b->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $_->pid . ')') foreach @many[ 4 .. 5 ];
is($_->result->{state}, '57014', 'one is cancelled') foreach @many[ 0 .. 3 ];
kill 'CONT', $broker;
is($_->result->{out}, 't', 'one gets its answer') foreach @many[ 6 .. 11 ];
is(locked('job'), 't', 'places are free') foreach 1 .. 20;

replace_broker($host_b);
is(locked('job'), 't', 'the next broker answers');

# a node that has lost the script
$_->cli('SCRIPT', 'FLUSH') foreach @nodes;
is(locked('job'), 't', 'nodes without the script get its text');

$_->quit foreach $on_a, $also_a, $on_b, @many;
done_testing();

# redlock_last_run: when a job last ran, on which host, and how the run ended, asked on any host.
#
# Protects from: a job's last run unknown because another host ran the job; a lost or failed run
# shown as no run; an older run, or a host that never had the lock, hiding the last run; a run that
# fails, waits or keeps its lock because the nodes do not take its note; notes filling the nodes'
# memory; an answer by a minority; a forged note in place of a run; a role reading the errors of
# other roles.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf, init => { extra => [ '-E', 'LATIN1', '--locale', 'C' ] });
my ($on_a, $gate, $on_b) = map { session($_) } $host_a, $host_a, $host_b;

# Columns of redlock_last_run, as host b sees the job.
sub last_run
{
	my ($job, $columns) = @_;
	return $on_b->query("SELECT $columns FROM redlock_last_run('$job')");
}

sub becomes
{
	my ($job, $columns, $expected, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(sub { last_run($job, $columns) eq $expected }, $what) || diag(last_run($job, '*'));
}

# Returns when the note is at the nodes: a host asks the nodes in the order of the calls.
sub run_job
{
	my ($on, $job, $command, $more) = @_;
	my $result = $on->run("CALL redlock_run('$job', '$command', record => true" . ($more // '') . ')');

	$on->run("SELECT redlock_last_run('$job')");
	return $result;
}

sub wait_running
{
	return wait_until(sub { $gate->query("SELECT count(*) FROM redlock_runs WHERE status = 'running'") == 1 }, 'a run is under way');
}

# Evaluates Lua at nodes; KEYS: the hash and the sorted set of the notes.
sub at_nodes
{
	my ($lua, @at) = @_;
	return map { $_->cli('EVAL', "local runs = 'redlock:\\0runs' local ends = runs .. '\\0ends' $lua", 0) } @at ? @at : @nodes;
}

sub logged
{
	my ($host, $what) = @_;
	return scalar(() = slurp_file($host->logfile) =~ /$what/g);
}

# ---- none ----

is(last_run('job', 'started, ended, status, token, cluster_name, host, host_id, database, role, pid, message, nodes, of_nodes'),
	'|||||||||||0|3', 'no run is known');
is($on_b->run('SELECT redlock_last_run(NULL)')->{state}, '22004', 'a name is needed');

# ---- ends well ----

is(run_job($on_a, 'job', 'SELECT 1')->{state}, '', 'a run on host a');
is(last_run('job', "status, cluster_name, host <> '', host_id, database, role = session_user, pid, message, nodes, of_nodes"),
	join('|', 'succeeded', 'a', 't', host_id($host_a), 'postgres', 't', $on_a->pid, '', 3, 3), 'host b knows the run at once');
is(last_run('job', 'started, ended, token'), $on_a->query("SELECT started, ended, token FROM redlock_runs WHERE resource = 'job'"),
	'... as the table redlock_runs on host a has it');
run_job($on_b, 'job', 'SELECT 1');
is(last_run('job', 'cluster_name, pid'), 'b|' . $on_b->pid, 'then host b runs the job');
$on_a->query("CALL redlock_run('unrecorded', 'SELECT 1')");
is(last_run('unrecorded', 'status'), '', 'a run without record leaves no note');

# ---- fails ----

run_job($on_a, 'job', "DO \$\$ BEGIN RAISE EXCEPTION ''no more %'', repeat(''\xc3\xa4'', 500); END \$\$");
becomes('job', 'cluster_name, status', 'a|failed', 'host b learns of a failed run');
like(last_run('job', "convert_to(message, 'UTF8')"), qr/^\\x6e6f206d6f726520(c3a4){96}$/, '... with the beginning of the message, in another encoding');
is(last_run('job', 'ended, token'), $on_a->query("SELECT ended, token FROM redlock_runs WHERE status = 'failed'"), '... as redlock_runs has it');

# ---- its lease is lost ----

$gate->query('SELECT pg_advisory_lock(1)');
run_job($on_a, 'job', 'SELECT pg_advisory_xact_lock(1)', ", hold_at_most => '500 ms'");
becomes('job', 'status', 'lost', '... of a lost lease');
like(last_run('job', 'message'), qr/^canceling statement because the lease on redlock "job" was lost\. The hold_at_most/, '... and why');

# ---- the messages of a role are its own ----

$host_b->safe_psql('postgres', 'CREATE ROLE other; CREATE ROLE monitor IN ROLE pg_read_all_stats');
$on_b->query('SET ROLE other');
is(last_run('job', 'status, message'), 'lost|', 'another role sees the run without the message');
$on_b->query('SET ROLE monitor');
isnt(last_run('job', 'message'), '', 'a role for monitoring sees the message');
$on_b->query('RESET ROLE');

# ---- no run of its own ----

my $lost = last_run('job', 'token');
$on_b->query("SELECT redlock_acquire('job', scope => 'session')");
run_job($on_a, 'job', 'SELECT 1');
run_job($on_a, 'job', 'SELEKT 1');
wait_until(sub { $on_a->query("SELECT count(*) FROM redlock_runs WHERE token IS NULL") == 2 }, 'a skipped run, and a run without the lock');
$on_b->query("SELECT redlock_release('job')");
is(last_run('job', 'token'), $lost, '... are not the last run');

# ---- an older run ----

run_job($on_a, 'order', 'SELECT 1');
at_nodes(q{redis.call('HSET', runs, 'aside', redis.call('HGET', runs, 'order'))});
run_job($on_b, 'order', 'SELECT 1');
at_nodes(q{redis.call('HSET', runs, 'order', redis.call('HGET', runs, 'aside'))}, $nodes[0]);
is(last_run('order', 'cluster_name, nodes'), 'b|2', 'of different notes the newest wins');

# the token of host b's run grows by a quarter of an hour
at_nodes(q{redis.call('HSET', runs, 'order', (redis.call('HGET', runs, 'order'):gsub('^%d+', function(token) return string.format('%.0f', token + 900000000) end)))});
my $newest = last_run('order', 'token, cluster_name, nodes');
is(run_job($on_a, 'order', 'SELECT 1')->{state}, '', 'a run with a smaller token than the noted one');
is(last_run('order', 'token, cluster_name, nodes'), $newest, '... does not become the last run');

# ---- a minority of nodes is down ----

$nodes[2]->pause;
is(run_job($on_a, 'minority', 'SELECT 1')->{state}, '', 'a run without one node');
is(last_run('minority', 'status, nodes, of_nodes'), 'succeeded|2|3', '... is known to the others');
$nodes[2]->resume;
wait_nodes_ready($_, 3) foreach $host_a, $host_b;
is(logged($host_a, qr/has noted the last run/), 0, 'a minority needs no message');

# ---- no quorum at the end of the run ----

$on_a->send("CALL redlock_run('no quorum', 'SELECT pg_advisory_xact_lock(1)', record => true)");
wait_running();
$nodes[$_]->pause foreach 1, 2;
$gate->query('SELECT pg_advisory_unlock(1)');
is($on_a->result->{state}, '', 'the run succeeds without a quorum of nodes');
is($on_a->query("SELECT status FROM redlock_runs WHERE resource = 'no quorum'"), 'succeeded', '... and is recorded');
wait_until(sub { logged($host_a, qr/LOG:  no quorum of redlock nodes has noted the last run of "no quorum"\n.*DETAIL:  No usable answer from: \S+: .*; \S+: .*\./) == 1 }, '... with a message in the log');
my $result = $on_b->run("SELECT redlock_last_run('no quorum')");
is($result->{state}, '08006', 'an answer of a minority is an error');
like($result->{message}, qr/^no quorum of redlock nodes could be reached to look up "no quorum"$/, '... which says so');
$nodes[$_]->resume foreach 1, 2;
wait_nodes_ready($_, 3) foreach $host_a, $host_b;

# ---- no broker, and no place ----

my $broker = broker_pid($host_a);
$gate->query('SELECT pg_advisory_lock(1)');
$on_a->query("SELECT redlock_acquire('held ' || i, scope => 'session') FROM generate_series(1, 64) i");
$on_a->send("CALL redlock_run('no broker', 'SELECT pg_advisory_xact_lock(1)', record => true, hold_at_most => '3 s')");
wait_running();
kill 'STOP', $broker;
$gate->query('SELECT pg_advisory_unlock(1)');
is($on_a->result->{state}, '', 'a run does not wait for a stopped broker, and keeps its lock no longer');
is((grep { $on_a->run("CALL redlock_run('held $_', 'SELECT 1', record => true)")->{state} eq '' } 1 .. 64), 64, '... nor do the next runs');
is(logged($host_a, qr/LOG:  no place is free for the note of the last run of "held 64"\n.*DETAIL:  The redlock broker does not run, or 64 notes wait for the broker\./), 1, '... the last of which finds no place for its note');
kill 'CONT', $broker;
becomes('no broker', 'status', 'succeeded', '... and the broker leaves the note later');
wait_until(sub { $on_b->query("SELECT count(status) FROM generate_series(1, 64) i, redlock_last_run('held ' || i)") eq '63' }, '... with those of all other runs');
$on_a->query('SELECT redlock_release_all()');

# ---- questions of other sessions ----

kill 'STOP', $broker;
my @asking = map { session($host_a) } 1 .. 10;
$_->send("SELECT redlock_holder('job')") foreach @asking;
wait_until(sub { $gate->query("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT redlock_holder%' AND state = 'active'") == 10 }, 'ten sessions ask');
$on_a->send("CALL redlock_run('crowded', 'SELECT 1', record => true)");
kill 'CONT', $broker;
is($on_a->result->{state}, '', 'a run beside sessions that ask');
becomes('crowded', 'status', 'succeeded', '... leaves its note');
$_->result foreach @asking;
$_->quit foreach @asking;

# ---- the next broker ----

$broker = broker_pid($host_a);
$on_a->query("SELECT redlock_acquire('held', scope => 'session')");
kill 'STOP', $broker;
$on_a->query("CALL redlock_run('held', 'SELECT 1', record => true)");
my $noted = $on_a->query("SELECT max(token) FROM redlock_runs WHERE resource = 'held'");
kill 'CONT', $broker;
replace_broker($host_a);
becomes('held', 'token', $noted, 'a note outlives a restart of the broker');
$on_a->query("SELECT redlock_release('held')");

# ---- garbage ----

at_nodes(q{redis.call('HSET', runs, 'forged', 'garbage')
	redis.call('ZADD', ends, '+inf', 'forged')
	redis.call('HSET', runs, 'forged 2', '9007199254740990\0001\0001\000succeeded\0000123456789abcdef\0001\000x\000x\000x\000x\000x\000')
	redis.call('ZADD', ends, '+inf', 'forged 2')
	redis.call('HSET', runs, 'forged 3', string.rep('1', 100000))
	redis.call('ZADD', ends, '+inf', 'forged 3')});
is(last_run($_, 'status, nodes, of_nodes'), '|0|3', 'a forged note is none') foreach 'forged', 'forged 2', 'forged 3';
foreach my $job ('forged', 'forged 2', 'forged 3')
{
	run_job($on_a, $job, 'SELECT 1');
	is(last_run($job, 'status, cluster_name, nodes'), 'succeeded|a|3', '... and gives way to a run');
}
at_nodes(q{redis.call('RENAME', runs, 'aside') redis.call('SET', runs, 'of another type')}, $nodes[0]);
is(last_run('forged', 'status, nodes, of_nodes'), 'succeeded|2|3', 'a key of another type is no answer');
at_nodes(q{redis.call('RENAME', 'aside', runs)}, $nodes[0]);
at_nodes(q{redis.call('HSET', runs, 'shown', (redis.call('HGET', runs, 'forged'):gsub('postgres', 'a\27\255b')))
	redis.call('ZADD', ends, '+inf', 'shown')});
is(last_run('shown', 'database'), 'a??b', 'bytes are made fit for people');
at_nodes(q{for _, job in ipairs({'forged', 'forged 2', 'forged 3', 'shown'}) do redis.call('HDEL', runs, job) redis.call('ZREM', ends, job) end});

# ---- the notes expire, and have a bound ----

is(join(' ', at_nodes(q{local now, keep = redis.call('TIME')[1] * 1000, 30 * 86400000
	for _, key in ipairs({runs, ends}) do
		local left = redis.call('PTTL', key)
		if left > keep or left < keep - 3600000 then return 'PTTL ' .. left end
	end
	local score = redis.call('ZSCORE', ends, 'job') - now
	return (score <= keep + 1000 and score > keep - 3600000) and 'good' or score})), 'good good good', 'the nodes keep notes for redlock.last_run_keep');
at_nodes(q{redis.call('ZADD', ends, redis.call('TIME')[1] * 1000 - 1, 'job')});
is(last_run('job', 'status, nodes'), '|0', 'an expired note is not told');
run_job($on_a, 'any', 'SELECT 1');
is(join(' ', at_nodes(q{return redis.call('HEXISTS', runs, 'job')})), '0 0 0', '... and the next run removes the note');

at_nodes(q{redis.call('DEL', runs, ends) local now = redis.call('TIME')[1] * 1000
	for i = 1, 10000 do redis.call('HSET', runs, 'filler ' .. i, 'x') redis.call('ZADD', ends, now + 1000000 + i, 'filler ' .. i) end});
run_job($on_a, 'any', 'SELECT 1');
is(join(' ', at_nodes(q{return redis.call('HLEN', runs) .. ',' .. redis.call('ZCARD', ends) .. ',' .. redis.call('HEXISTS', runs, 'filler 1') .. redis.call('HEXISTS', runs, 'filler 2')})),
	join(' ', ('10000,10000,01') x 3), 'of 10,000 jobs the one that expires first makes room');
run_job($on_a, 'any', 'SELECT 1');
is(join(' ', at_nodes(q{return redis.call('HLEN', runs) .. ',' .. redis.call('HEXISTS', runs, 'filler 2')})), join(' ', ('10000,1') x 3), '... but not for a job that has a note');
at_nodes(q{for i = 1, 100 do redis.call('ZADD', ends, 1, 'old ' .. i) redis.call('HSET', runs, 'old ' .. i, 'x') end});
run_job($on_a, 'any', 'SELECT 1');
is(join(' ', at_nodes(q{return redis.call('ZCARD', ends)})), '10090 10090 10090', 'a run removes at most ten notes');
at_nodes(q{redis.call('DEL', runs, ends)});

# ---- a full node ----

{
	$_->cli('CONFIG', 'SET', 'maxmemory-policy', 'noeviction') foreach @nodes;
	$gate->query('SELECT pg_advisory_lock(1)');
	$on_a->send("CALL redlock_run('full', 'SELECT pg_advisory_xact_lock(1)', record => true)");
	wait_running();
	$_->cli('CONFIG', 'SET', 'maxmemory', '1') foreach @nodes;
	$gate->query('SELECT pg_advisory_unlock(1)');
	is($on_a->result->{state}, '', 'a run ends although the nodes are full');
	wait_until(sub { logged($host_a, qr/has noted the last run of "full"\n.*DETAIL:  No usable answer from: \S+: OOM /) == 1 }, '... which refuse the note');
	is(last_run('full', 'status, nodes'), '|0', '... and answer');
	$_->cli('CONFIG', 'SET', 'maxmemory', '0') foreach @nodes;
}

# ---- no notes ----

$host_a->append_conf('postgresql.conf', 'redlock.last_run_keep = 0');
$host_a->reload;
wait_until(sub { $on_a->query('SHOW redlock.last_run_keep') eq '0' }, 'a setting');
run_job($on_a, 'quiet', 'SELECT 1');
is(last_run('quiet', 'status, nodes'), '|0', '... keeps runs from leaving notes');
is($on_a->run('ALTER SYSTEM SET redlock.last_run_keep = 30')->{state}, '22023', 'a bare number is no number of days');

$_->quit foreach $on_a, $on_b, $gate;
done_testing();

# Hosts find each other through the nodes.  Hosts whose settings do not keep locks apart notice the
# conflict.
#
# Protects from: a host missing in redlock_hosts, or staying there after its death; a list cut
# short, or costing a node or a broker more with each host; strangers' entries hurting a broker or
# the list; hosts with different nodes, databases or redlock.max_ttl sharing locks without a
# warning, refusing locks without a reason, or still refusing after the conflict; held locks ended
# by a conflict.
#
# Takes over a minute: a dead host stays in the lists for 45 s.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes 'time';

my $HOSTS = "redlock:\\0hosts";

my @nodes = redis_nodes(5);
my %host = map { $_ => redlock_cluster($_, nodes => \@nodes) } qw(a b c);

sub set
{
	my ($host, @settings) = @_;

	$host->append_conf('postgresql.conf', $_) foreach @settings;
	$host->reload;
	return;
}

# Returns the names of the listed hosts.  Reads the list again if the nodes are too slow.
sub names_on
{
	my ($host, $where) = @_;
	my $result;

	foreach my $time (1 .. 50)
	{
		$result = psql_result($host,
			"SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM redlock_hosts " . ($where // ''));
		last if $result->{state} ne '08006';
	}
	return $result->{state} eq '' ? $result->{out} : "error $result->{state}";
}

# Runs a script at each node that answers, and returns the results.
sub eval_on
{
	my ($script, @on) = @_;

	return map { $_->cli('EVAL', $script, 0) } grep { $_->answers } @on;
}

sub wait_agreed
{
	my (@hosts) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $host (@hosts)
	{
		wait_until(sub { psql_result($host, "SELECT redlock_try('agreed')")->{state} eq '' },
			$host->name . ' acquires locks', 70);
	}
	return;
}

# Waits until the host refuses locks because of a conflict; returns the error.
sub wait_refused
{
	my ($host, $detail) = @_;
	my $result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$result = psql_result($host, "SELECT redlock_try('refused')");
			return $result->{state} eq '55000' && $result->{detail} =~ ($detail // qr/./);
		},
		$host->name . ' refuses', 40);
	return $result;
}

sub count_in_log
{
	my ($host, $pattern) = @_;

	return scalar(() = slurp_file($host->logfile) =~ /$pattern/g);
}

subtest 'the hosts are there' => sub {
	foreach my $host (values %host)
	{
		wait_until(sub { names_on($host, 'WHERE nodes = 5') eq 'a b c' }, $host->name . ' knows all hosts');
	}
	is( $host{a}->safe_psql('postgres', <<'SQL'), 't|t|t|t|t|t|t', 'redlock_hosts describes each host');
SELECT count(DISTINCT host_id) = 3 AND bool_and(host_id ~ '^[0-9a-f]{16}$'),
       bool_and(version = (SELECT default_version FROM pg_available_extensions WHERE name = 'redlock_pg')),
       bool_and(postgres LIKE current_setting('server_version_num')::int / 10000 || '%'),
       bool_and(prefix = 'redlock:'),
       bool_and(since BETWEEN now() - interval '10 min' AND now()
                AND last_seen BETWEEN since AND clock_timestamp()),
       bool_and(settled AND leases = 0),
       bool_and(agrees AND disagreement IS NULL)
  FROM redlock_hosts
SQL
	is($host{b}->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts x JOIN redlock_hosts y USING (host_id)'),
		'3', 'twice in one statement');

	my $session = session($host{a});
	$session->query("SELECT redlock_acquire('job', scope => 'session')");
	my $value = $nodes[0]->cli('GET', 'redlock:job');
	my $id = $host{b}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'a'");
	like($value, qr/^[0-9a-f]{32}:\d{9}:$id /, 'the id is in the values of its locks');
	wait_until(
		sub { $host{b}->safe_psql('postgres', "SELECT leases FROM redlock_hosts WHERE name = 'a'") eq '1' },
		'how many locks it has');
	$session->quit;

	my @sessions = map { session($host{a}) } 1 .. 8;
	$_->send('SELECT count(*) FROM redlock_hosts') foreach @sessions;
	is(join(' ', map { $_->result->{out} } @sessions), join(' ', ('3') x 8), 'many look at once');
	$_->quit foreach @sessions;
};

subtest 'what a beat costs does not depend on how many hosts there are' => sub {
	my $figures = 0; # bytes of the node's answers to this function
	my $stats = sub {
		my ($node) = @_;
		my $of_commands = $node->cli(qw(INFO commandstats));
		my %calls = $of_commands =~ /^cmdstat_(\w+):calls=(\d+)/mg;
		my $of_node = $node->cli(qw(INFO stats));
		my ($sent) = $of_node =~ /^total_net_output_bytes:(\d+)/m;

		$figures += length $of_commands;
		$sent    -= $figures;
		$figures += length $of_node;
		my $commands = 0;
		$commands += $calls{$_} // 0
		  foreach qw(zadd zrem zrange zrangebyscore zrangebylex zscore hset hget hdel pexpire get set);
		return { beats => $calls{zadd} / 5, commands => $commands, sent => $sent };
	};
	my $cost = sub {
		my $before = $stats->($nodes[0]);
		my $after;
		wait_until(sub { $after = $stats->($nodes[0]); $after->{beats} >= $before->{beats} + 6 }, 'six beats');
		my $beats = $after->{beats} - $before->{beats};
		return map { ($after->{$_} - $before->{$_}) / $beats } qw(commands sent);
	};
	my ($commands, $sent) = $cost->();
	my $id = $host{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'b'");

	# a thousand more hosts, with the facts of host b
	eval_on(<<LUA, @nodes);
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts = redis.call('HGET', '$HOSTS\\0facts', '$id')
local users = '$HOSTS\\0users:' .. string.sub(facts, 1, 40)
for i = 1, 1000 do
	local id = string.format('%016x', i)
	redis.call('ZADD', '$HOSTS', now, id)
	redis.call('ZADD', '$HOSTS\\0ids', 0, id)
	redis.call('ZADD', users, now, id)
	redis.call('HSET', '$HOSTS\\0facts', id, facts)
end
LUA
	is( $host{a}->safe_psql('postgres', <<'SQL'), '1003|1003|5|5|1003', 'all are listed');
SELECT count(*), count(DISTINCT host_id), min(nodes), max(nodes), count(*) FILTER (WHERE agrees) FROM redlock_hosts
SQL
	my ($more_commands, $more_sent) = $cost->();
	cmp_ok($more_commands, '<', 1.2 * $commands, "commands of a beat: $commands, then $more_commands");
	cmp_ok($more_sent, '<', 2 * $sent, "bytes to hosts for a beat: $sent, then $more_sent");
	eval_on(<<LUA, @nodes);
for i = 1, 1000 do
	redis.call('ZADD', '$HOSTS', 0, string.format('%016x', i))
end
LUA
	is(names_on($host{a}), 'a b c', 'those that were not seen lately are not listed');
	wait_until(sub { !grep { $_ ne '3' } eval_on("return redis.call('ZCARD', '$HOSTS')", @nodes) },
		'and forgotten', 150);
	is(join(' ', eval_on("return redis.call('HLEN', '$HOSTS\\0facts') + redis.call('ZCARD', '$HOSTS\\0ids')", @nodes)),
		'6 6 6 6 6', 'all of it');
};

subtest 'what strangers write' => sub {
	my $broker = broker_pid($host{a});
	my $id = $host{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'b'");
	my $strange = <<LUA;
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts = redis.call('HGET', '$HOSTS\\0facts', '$id')
local config = string.sub(facts, 1, 40)
local number = 0
local function add(id, score, facts)
	redis.call('ZADD', '$HOSTS', score, id)
	redis.call('ZADD', '$HOSTS\\0ids', 0, id)
	redis.call('HSET', '$HOSTS\\0facts', id, facts)
	number = number + 1
end
for i = 1, 500 do
	add('zzzz' .. i, now, facts)
	add(string.rep('\\0', i), now, facts)
end
add(string.rep('f', 100000), now, facts)
add('ABCDEFABCDEFABCD', now, facts)
add('aaaaaaaaaaaaaaa1', now, string.rep('x', 1000000))
add('aaaaaaaaaaaaaaa2', now, config)
add('aaaaaaaaaaaaaaa3', now, config .. 'name')
add('aaaaaaaaaaaaaaa4', now, config .. '\\27[31m\\0001\\0002\\0003\\0001\\0005\\0')
add('aaaaaaaaaaaaaaa5', now, config .. 'a\\0001\\0002\\000-3\\0001\\0005\\0')
add('aaaaaaaaaaaaaaa6', now, config .. 'a\\0001\\0002\\00099999999999999999999\\0001\\0005\\0')
add('aaaaaaaaaaaaaaa7', now, string.rep('0', 40) .. string.sub(facts, 41))
add('aaaaaaaaaaaaaaa8', now + 3600000, facts)
add('aaaaaaaaaaaaaaa9', '-inf', facts)
add('aaaaaaaaaaaaaa10', '+inf', facts)
for i = 1, 100 do
	local config = redis.sha1hex(i)
	local id = string.format('bbbbbbbbbbbbb%03d', i)
	redis.call('ZADD', '$HOSTS\\0configs:redlock:', now, config)
	redis.call('ZADD', '$HOSTS\\0users:' .. config, now, id)
	redis.call('SET', '$HOSTS\\0config:' .. config, string.rep('redlock:\\00060000\\0005\\0', i * i))
	add(id, now, config .. string.sub(facts, 41))
end
return number
LUA
	# the fifth node has no strange entries
	eval_on($strange, @nodes[0 .. 3]);
	wait_until(sub { psql_result($host{a}, 'SELECT FROM redlock_hosts')->{state} eq '' }, 'the list is read');
	is(names_on($host{a}, "WHERE host_id !~ '^[ab]{13}'"), 'a b c', 'the hosts are there');
	is(psql_result($host{a}, "SELECT string_agg(host_id || ' ' || name, ', ') FROM redlock_hosts WHERE host_id ~ '^[ab]{13}'")->{out} // '', '', 'and no others');
	my $beats = sub { ($nodes[0]->cli(qw(INFO commandstats)) =~ /^cmdstat_hset:calls=(\d+)/m)[0] };
	my $before = $beats->();
	wait_until(sub { $beats->() > $before + 9 }, 'three beats of each');
	is(broker_pid($host{a}), $broker, 'the broker lives');
	is($host{a}->safe_psql('postgres', "SELECT redlock_try('strangers')"), 't', 'and acquires');
	is($host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'"), '5', 'by all nodes');

	# the list has another type
	eval_on("redis.call('DEL', '$HOSTS') redis.call('SET', '$HOSTS', 'strange')", @nodes[0, 1]);
	wait_until(sub { names_on($host{a}) eq 'a b c' }, 'two nodes have no list');
	wait_until(
		sub { count_in_log($host{a}, 'redlock node \S+ does not keep the list of hosts: .*WRONGTYPE') == 2 },
		'the log says so');
	eval_on("redis.call('DEL', '$HOSTS')", @nodes[0, 1]);
	wait_until(sub { names_on($host{a}, 'WHERE nodes = 5') eq 'a b c' }, 'all nodes have the list of hosts again');
	eval_on(<<LUA, @nodes);
for _, key in ipairs(redis.call('KEYS', '$HOSTS' .. '*')) do
	redis.call('DEL', key)
end
LUA
	wait_until(sub { names_on($host{a}, 'WHERE nodes = 5') eq 'a b c' }, 'and when all was deleted');
	is(count_in_log($host{a}, 'has other settings'), 0, 'no conflict was logged');
};

subtest 'nodes fail' => sub {
	$nodes[4]->kill9;
	wait_until(sub { names_on($host{a}, 'WHERE nodes = 4') eq 'a b c' }, 'one node');
	$_->pause foreach @nodes[2, 3];
	wait_until(sub { psql_result($host{a}, 'SELECT * FROM redlock_hosts')->{state} eq '08006' }, 'a majority');
	my $result = psql_result($host{a}, 'SELECT * FROM redlock_hosts');
	like($result->{message}, qr/^no quorum of redlock nodes could be reached for the list of hosts$/, 'the error');
	like($result->{detail}, qr/${\$nodes[4]->address}: /, 'names the nodes');
	$_->resume foreach @nodes[2, 3];
	$nodes[4]->start;
	wait_until(
		sub {
			my $result = psql_result($host{a}, 'SELECT count(*) FROM redlock_hosts WHERE nodes = 5');
			$result->{out} eq '3';
		},
		'they are back');

	my $broker = broker_pid($host{a});
	kill 'STOP', $broker;
	$result = psql_result($host{a}, 'SELECT * FROM redlock_hosts');
	is($result->{state}, '55000', 'the broker is stopped');
	like($result->{message}, qr/^the redlock broker has not listed the hosts in time$/, 'the error');
	$result = psql_result($host{a}, "SET statement_timeout = '200ms'; SELECT * FROM redlock_hosts");
	is($result->{state}, '57014', 'who asks can be cancelled');
	kill 'CONT', $broker;
	wait_until(sub { psql_result($host{a}, 'SELECT * FROM redlock_hosts')->{state} eq '' }, 'it goes on');
	kill 'TERM', $broker;
	# the postmaster starts the next broker after a second or more
	wait_until(sub { names_on($host{a}) eq 'a b c' }, 'the next broker');
};

subtest 'hosts come and go' => sub {
	my $c = $host{b}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'c'");

	$host{c}->stop;
	is(join(' ', map { "[$_]" } eval_on("return redis.call('ZSCORE', '$HOSTS', '$c')", @nodes)),
		'[] [] [] [] []', 'a stopped host has left the lists');
	is(names_on($host{a}), 'a b', 'at once');
	$host{c}->start;
	wait_until(sub { names_on($host{a}) eq 'a b c' }, 'it comes again');
	isnt($host{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'c'"), $c, 'with another id');
	my $killed_at = time;
	$host{c}->stop('immediate');
	is(names_on($host{a}), 'a b c', 'one that dies is not known to be dead');

	# the entry of the dead host names the Redis processes that end here
	my $conflicts = count_in_log($host{a}, 'has other settings than this one');
	$_->restart(empty => 1) foreach @nodes[0, 1, 2];
	wait_until(sub { names_on($host{a}, 'WHERE nodes = 5') eq 'a b' }, 'nodes restart without their data');
	is(names_on($host{a}, 'WHERE NOT agrees'), '', 'all agree');
	wait_until(sub { names_on($host{a}) eq 'a b' }, 'until its time is over', 70);
	cmp_ok(time - $killed_at, '<', 60, 'within a minute');
	is(count_in_log($host{a}, 'has other settings than this one'), $conflicts, 'no further conflict was logged');
	wait_nodes_ready($_, 5) foreach $host{a}, $host{b};
};

subtest 'another prefix' => sub {
	set($host{b}, "redlock.key_prefix = 'other:'", "redlock.max_ttl = '30s'");
	wait_until(sub { names_on($host{a}, "WHERE prefix = 'other:' AND agrees IS NULL AND disagreement IS NULL") eq 'b' },
		'is told');
	my $beats = sub { ($nodes[0]->cli(qw(INFO commandstats)) =~ /^cmdstat_hset:calls=(\d+)/m)[0] };
	my $before = $beats->();
	wait_until(sub { $beats->() > $before + 6 }, 'three beats of each');
	is($_->safe_psql('postgres', "SELECT redlock_try('job', ttl => '10 s')"), 't', $_->name . ' acquires')
	  foreach $host{a}, $host{b};
	is(count_in_log($_, 'has other settings'), 0, 'no conflict was logged') foreach $host{a}, $host{b};
};

subtest 'another max_ttl' => sub {
	my $held = session($host{a});
	my $queued = session($host{a});
	$host{c}->start;
	wait_agreed($host{c});
	my $waiting = session($host{c});

	# the ttl is long enough for a busy machine
	$held->query("SELECT redlock_acquire('held', ttl => '6 s', scope => 'session')");
	$waiting->send("SELECT redlock_acquire('held')");
	set($host{b}, "redlock.key_prefix = 'redlock:'");
	my $refused = wait_refused($host{b});
	like($refused->{message}, qr/since host "[ac]" has other settings/, 'the host that was changed gets no locks');
	is(psql_result($host{a}, "SELECT redlock_try('goes on')")->{state}, '', 'the others do');
	set($host{b}, 'redlock.on_disagreement = warn');
	my $result = wait_refused($host{a});
	like($result->{message}, qr/^redlock "refused" is not acquired, since host "b" has other settings and might get it too$/,
		'the error names the host');
	like($result->{detail}, qr/redlock\.max_ttl is 30000 ms at that host, and 60000 ms at this host\.$/, 'and in what it differs');
	like($result->{hint}, qr/^Set the same redlock\.max_ttl on both hosts\. Set redlock\.on_disagreement to refuse on that host.* This host acquires locks again when/, 'and what to do');
	is($waiting->result->{state}, '55000', 'who waits is refused, too');
	is($held->query("SELECT redlock_check('held') > '0'"), 't', 'what is held stays held');
	is( $host{b}->safe_psql('postgres', "SELECT agrees, disagreement FROM redlock_hosts WHERE name = 'a'"),
		'f|redlock.max_ttl is 60000 ms at that host, and 30000 ms at this host. Set the same redlock.max_ttl on both hosts.',
		'in the view');
	is($host{b}->safe_psql('postgres', "SELECT agrees FROM redlock_hosts WHERE name = 'b'"), 't', 'one agrees with itself');
	is($held->query("SELECT redlock_acquire('held', scope => 'session') > 0"), 't', 'and is acquired again');
	$held->query("SELECT redlock_release('held')");

	# a conflict does not end a held lease, but refuses the next session in the queue
	$queued->send("SELECT redlock_acquire('held', ttl => '6 s')");
	wait_until(
		sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'queued'") eq '1' },
		'a session is queued');
	my $renewed = $host{a}->safe_psql('postgres', 'SELECT renewed FROM redlock_stats');
	wait_until(sub { $host{a}->safe_psql('postgres', "SELECT renewed > $renewed FROM redlock_stats") eq 't' },
		'it is renewed');
	is($held->query("SELECT redlock_check('held') > '0'"), 't', 'and held');
	is($held->query("SELECT redlock_release('held')"), 't', 'and released');
	is($queued->result->{state}, '55000', 'its turn was over: the nodes would have to be asked');
	wait_until(sub { key_count('redlock:held', @nodes) == 0 }, 'its keys are gone');

	foreach my $host ($host{a}, $host{b})
	{
		is(count_in_log($host, 'WARNING:  redlock host "[abc]" has other settings than this one, and both could get one lock'),
			1, $host->name . ' has told it once');
	}

	# with warn, host a takes locks in spite of the conflict
	set($host{a}, "redlock.on_disagreement = warn");
	wait_agreed($host{a}, $host{b});
	is($host{a}->safe_psql('postgres', "SELECT agrees FROM redlock_hosts WHERE name = 'b'"), 'f', 'the conflict lasts');
	set($host{a}, "redlock.on_disagreement = refuse");
	wait_refused($host{a});
	kill 'TERM', broker_pid($host{a});
	wait_until(sub { count_in_log($host{a}, 'WARNING:  redlock host "b" has other') == 2 }, 'the next broker has found it');
	wait_refused($host{a});

	# after another change of host b, both hosts log the new difference
	set($host{b}, "redlock.max_ttl = '40s'");
	foreach my $host ($host{a}, $host{b})
	{
		wait_until(sub { slurp_file($host->logfile) =~ /DETAIL: .* 40000 ms/ }, $host->name . ' tells of the next difference');
	}

	set($host{b}, "redlock.max_ttl = '60s'", 'redlock.on_disagreement = refuse');
	wait_agreed($host{a}, $host{b});
	foreach my $host ($host{a}, $host{b})
	{
		wait_until(sub { count_in_log($host, 'redlock host "[abc]" agrees with this one again, or is gone') >= 1 },
			$host->name . ' says that it is over');
	}
	is($host{a}->safe_psql('postgres', "SELECT agrees FROM redlock_hosts WHERE name = 'b'"), 't', 'they agree');
	$_->quit foreach $held, $queued, $waiting;
	$host{c}->stop;
};

subtest 'another database' => sub {
	set($host{b}, "redlock.nodes = '" . join(',', map { $_->url(db => 1) } @nodes) . "'");
	my $result = wait_refused($host{b});
	like($result->{detail}, qr/At node \S+, that host uses database 0, and this host database 1\.$/, 'the error');
	wait_until(
		sub { ($host{a}->safe_psql('postgres', "SELECT standing FROM redlock_hosts WHERE name = 'b'")) eq 'refuses' },
		'host a knows that host b refuses');
	is(psql_result($host{a}, "SELECT redlock_try('goes on')")->{state}, '', 'and go on');
	like($host{b}->safe_psql('postgres', "SELECT disagreement FROM redlock_hosts WHERE name = 'a'"),
		qr/At node \S+, that host uses database 0, and this host database 1\. Name the same database/, 'the view');
	set($host{b}, "redlock.nodes = '" . node_urls(@nodes) . "'");
	wait_agreed($host{a}, $host{b});
};

subtest 'other nodes' => sub {
	# host b calls the nodes by other names, and lacks a node of host a
	set($host{b}, "redlock.nodes = '" . join(',', map { $_->url(host => 'localhost') } @nodes[0 .. 3]) . "'");
	wait_nodes_ready($host{b}, 4);
	wait_until(sub { names_on($host{a}, 'WHERE agrees') eq 'a b' }, 'hosts with enough common nodes agree');
	my $log_end = -s $host{a}->logfile;

	set($host{a}, "redlock.nodes = '" . node_urls(@nodes[0, 1, 2]) . "'");
	set($host{b}, "redlock.nodes = '" . node_urls(@nodes[2, 3, 4]) . "'", 'redlock.on_disagreement = warn');
	my @address = map { $_->address } @nodes;
	my $result = wait_refused($host{a},
		qr/Only that host has: $address[3], $address[4]; only this host has: $address[0], $address[1]\.$/);
	like($result->{hint}, qr/^Set redlock\.nodes to the same nodes on both hosts\./, 'and what to do');
	wait_until(sub { names_on($host{a}, 'WHERE NOT agrees AND nodes = 1') eq 'b' },
		'the view has it, by the one node that both have', 60);
	my %times;
	$times{$_}++ foreach slurp_file($host{a}->logfile, $log_end) =~ /has other settings than this one.*\n.*DETAIL:  (.*)/g;
	ok(%times && !grep { $_ > 1 } values %times, 'each difference was told once') or diag(explain(\%times));

	# a restarted node is the same node
	$nodes[2]->restart;
	wait_nodes_ready($_, 3) foreach $host{a}, $host{b};
	is(names_on($host{a}, 'WHERE NOT agrees'), 'b', 'also when the node has restarted');
	is(psql_result($host{a}, "SELECT redlock_try('refused')")->{state}, '55000', 'and refuses');

	# the conflict stays while a host cannot send to two of its nodes
	my %id = map { split /\|/ } split /\n/, $host{a}->safe_psql('postgres', 'SELECT name, host_id FROM redlock_hosts');
	$log_end = -s $host{a}->logfile;
	my $log_end_b = -s $host{b}->logfile;
	foreach my $away ([ 0, 1 ], [ 3, 4 ])
	{
		$_->pause foreach @nodes[@$away];
		wait_nodes_ready($away->[0] == 0 ? $host{a} : $host{b}, 1);
		wait_beats($_, $nodes[2]) foreach values %id;
		$_->resume foreach @nodes[@$away];
		wait_nodes_ready($_, 3) foreach $host{a}, $host{b};
		is(psql_result($host{a}, "SELECT redlock_try('refused')")->{state}, '55000', 'a refuses when they are back');
	}
	unlike(slurp_file($host{a}->logfile, $log_end) . slurp_file($host{b}->logfile, $log_end_b), qr/agrees with this one again/, 'all the time');

	# the conflict stays when the common node loses its list of hosts
	$nodes[2]->restart(empty => 1);
	foreach my $time (1 .. 2)
	{
		wait_beats($_, $nodes[2]) foreach values %id;
		is(psql_result($host{a}, "SELECT redlock_try('refused')")->{state}, '55000', 'a refuses when it has come back without data');
	}
	unlike(slurp_file($host{a}->logfile, $log_end) . slurp_file($host{b}->logfile, $log_end_b), qr/agrees with this one again/, 'all the time');

	# host b dies
	$host{b}->stop('immediate');
	wait_agreed($host{a});
};

done_testing();

# Nodes with little memory.  A role cannot fill the nodes with new names, and a full node still
# serves the names that the node knows.
#
# Protects from: a role without rights trying new names, by arrays of 64 in three sessions, until
# the nodes refuse all hosts (91,000 names of 200 bytes filled 30 MB in 5.5 s, for 28 hours); a
# full node refusing locks with a counter, or renewals, or granting unknown names; a nearly full
# node without a line in the log, or with a warning every five seconds; a host unable to connect
# to full nodes.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

use constant {
	LIMIT => 10000,               # redlock.max_new_names_per_hour
	MB    => 1024 * 1024,
	KEEP_MS => 7200000,           # LUA_COUNTER_KEEP_MS
};

my @nodes = redis_nodes(3, conf => [ '--maxmemory', '30mb', '--maxmemory-policy', 'noeviction' ]);
# a node that writes 64 new names at a time may be slow
my $conf = "redlock.ttl = '30s'\nredlock.node_timeout = '3s'";
my $host = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $known_host = redlock_cluster('b', nodes => \@nodes, conf => $conf);

$host->safe_psql('postgres', 'CREATE ROLE mallory; CREATE ROLE app');

sub session_of
{
	my ($role) = @_;
	my $session = session($host);

	$session->query("SET SESSION AUTHORIZATION $role");
	return $session;
}

sub used
{
	my ($node) = @_;
	my ($used) = $node->cli('INFO', 'memory') =~ /^used_memory:(\d+)/m;
	return $used;
}

sub told
{
	my ($what) = @_;
	return scalar(() = slurp_file($host->logfile) =~ /$what/g);
}

my $app = session_of('app');

# ---- one role, three sessions, arrays of unused names ----

{
	my $before = used($nodes[0]);
	my @mallory = map { session_of('mallory') } 1 .. 3;

	$mallory[$_]->send(<<~SQL) foreach 0 .. $#mallory;
		DO \$\$
		BEGIN
		    FOR n IN 1 .. 600 LOOP
		        PERFORM redlock_try_all(ARRAY(SELECT rpad('$_-' || n || '-' || k || '-', 200, 'x')
		                                    FROM generate_series(1, 64) k), scope => 'session');
		        PERFORM redlock_release_all();
		        COMMIT;
		    END LOOP;
		END \$\$
		SQL
	foreach my $session (@mallory)
	{
		my $result = $session->result;

		is($result->{state}, '53400', 'a role that brings in too many new names is refused');
		like($result->{message}, qr/^role "mallory" brings in too many new redlock names$/, 'which is told');
		like(
			$result->{detail},
			qr/^The role has brought in (99\d\d|10000) names .* and redlock\.max_new_names_per_hour is 10000\.$/,
			'with how many they are');
	}
	cmp_ok(max_counters(), '<=', LIMIT, 'no node has more counters than that');
	cmp_ok(used($nodes[0]) - $before, '<', 6 * MB, 'which take a fifth of 30 MB at most');
	cmp_ok($nodes[0]->cli('EVAL',
			q{for _, key in ipairs(redis.call('KEYS', '*xxx*')) do if redis.call('PTTL', key) > tonumber(ARGV[1]) then return key end end return ''},
			0, KEEP_MS), 'eq', '', 'and end two hours after they were written');
	is($app->query("SELECT redlock_try('new to all', scope => 'session')"), 't', 'another role goes on at once');
	is($app->query("SELECT redlock_try('1', scope => 'session')"), 't', 'with any name');
	is(psql_result($host, "SELECT redlock_try('new of a superuser', scope => 'session')")->{out}, 't', 'and so does a superuser');
	is($host->safe_psql('postgres', "SELECT new_names BETWEEN 9900 AND 10000, refused FROM redlock_roles WHERE role = 'mallory'"),
		't|3', 'redlock_roles tells which role it is');
	is($host->safe_psql('postgres', 'SELECT role FROM redlock_roles ORDER BY new_names DESC LIMIT 1'), 'mallory', 'and it brought in most');
	is(told(qr/LOG:  role "mallory" gets no more new redlock names for now\n.*DETAIL:  The role has brought in (99\d\d|10000) within an hour\./),
		1, 'the log tells it once');

	my $old = $mallory[0];
	is($old->query(q{SELECT redlock_try(rpad('0-1-1-', 200, 'x'), scope => 'session')}), 't', 'a name that is known is not new');
	is($old->query('SELECT redlock_release_all()'), 1, 'and is released');
}

sub max_counters
{
	my ($most) = sort { $b <=> $a } map {
		$_->cli('EVAL',
			q{local n = 0 for _, key in ipairs(redis.call('KEYS', '*xxx*')) do if key:sub(-6) == '\0token' then n = n + 1 end end return n}, 0)
	} @nodes;
	return $most;
}

# ---- full nodes ----

my $on_b = session($known_host);
my $renewed = session($host);

$app->query("SELECT redlock_release_all()");
$app->query("SELECT redlock_acquire('known', scope => 'session')");
$app->query("SELECT redlock_acquire_all(ARRAY['one', 'two'], scope => 'session')");
$app->query("SELECT redlock_acquire('shared', mode => 'shared', scope => 'session')");
$app->query("SELECT redlock_acquire('permit', permits => 2, scope => 'session')");
$app->query('SELECT redlock_release_all()');
$renewed->query("SELECT redlock_acquire('renewed', ttl => '1 s', scope => 'session')");
$renewed->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '1 h')");
my $token = $renewed->query("SELECT redlock_acquire('given back', scope => 'session')");

# Fills the node to the last kilobytes.  Memory freed later is too little for a name.
sub fill
{
	my ($node) = @_;
	my $number = 0;

	foreach my $size (4 * MB, MB, 100000, 10000, 1000)
	{
		1 while $node->cli('EVAL', q{return redis.call('SET', KEYS[1], string.rep('x', ARGV[1]))}, 1, 'fill' . ++$number, $size) eq 'OK';
	}
	# and a megabyte over the limit
	$node->cli('EVAL', q{redis.call('DEL', 'none') return redis.call('SET', KEYS[1], string.rep('x', ARGV[1]))}, 1, "fill$number", MB);
	return;
}

sub empty
{
	my ($node) = @_;

	$node->cli('EVAL', q{for _, key in ipairs(redis.call('KEYS', 'fill*')) do redis.call('DEL', key) end}, 0);
	return;
}

fill($_) foreach @nodes;

sub fails_with_oom
{
	my ($result, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '08006', $name);
	like($result->{detail}, qr/: OOM command not allowed when used memory > 'maxmemory'/, 'since the nodes have no memory');
	return;
}

fails_with_oom($app->run("SELECT redlock_try('unheard of', scope => 'session')"), 'a full node grants no new name');
fails_with_oom($app->run("SELECT redlock_try_all(ARRAY['known', 'unheard of, too'], scope => 'session')"), 'a full node refuses a call for a known and a new name');
is($app->query("SELECT redlock_try('known', scope => 'session')"), 't', 'a full node grants a known name');
is($on_b->query("SELECT redlock_try('known', scope => 'session')"), 'f', 'to one session');
is($app->query("SELECT redlock_try_all(ARRAY['one', 'two'], scope => 'session')"), 't', 'several');
is($app->query("SELECT redlock_try('shared', mode => 'shared', scope => 'session')"), 't', 'a shared one');
is($on_b->query("SELECT redlock_try('shared', mode => 'shared', scope => 'session')"), 't', 'a full node lets hosts share a known name');
is($app->query("SELECT redlock_try('permit', permits => 2, scope => 'session')"), 't', 'a permit');
$on_b->send("SELECT redlock_acquire('known', wait => '1 min', scope => 'session')");
wait_until(sub { $known_host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'known' AND state = 'waiting'") == 1 },
	'a session of another host waits');
is($app->query("SELECT redlock_release('known')"), 't', 'a lock is released there');
is($on_b->result->{state}, '', 'the waiter of the other host gets the lock');
is($on_b->query('SELECT redlock_release_all()'), 2, 'which releases it');
is($app->query('SELECT redlock_release_all()'), 4, 'all others are released');
is($renewed->query("SELECT redlock_release('given back')"), 't', 'and what was acquired before');
is($on_b->query("SELECT redlock_acquire('given back', scope => 'session') > $token"), 't', 'the next token is larger');

{
	my $renewals = $host->safe_psql('postgres', 'SELECT renewed FROM redlock_stats');

	ok($host->poll_query_until('postgres', "SELECT renewed >= $renewals + 5 FROM redlock_stats"), 'leases are renewed there');
	is($renewed->query("SELECT redlock_check('renewed') > '0'"), 't', 'and not lost');
	is($host->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), '0', 'none is');
	is($renewed->query(q{SELECT count(redlock_extend(resource, token, '2 h')) FROM redlock_locks WHERE scope = 'detached'}), 1, 'a detached lock is prolonged');
}

# ---- messages about full nodes ----

wait_until(sub { told(qr/WARNING:  redlock node \S+ has little memory left/) == 3 }, 'the log warns of each node')
  or diag(slurp_file($host->logfile));
like(slurp_file($host->logfile), qr/DETAIL:  The node uses \d+ of 31457280 bytes, \d+ %\. Of the roles of this server, the role with OID \d+ has brought in most new names within an hour: 99\d\d\./,
	'with the role that brought in most new names');
is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_nodes WHERE memory_used > 0.8 * memory_limit AND memory_limit = 31457280'),
	3, 'redlock_nodes tells how full they are');

$renewed->query("SELECT redlock_release('renewed')");
replace_broker($host);
wait_nodes_ready($host, 3);
is($app->query("SELECT redlock_try('known', scope => 'session')"), 't', 'a host that connects to full nodes uses them');
is($renewed->query(q{SELECT count(redlock_check(resource, token)) FROM redlock_locks WHERE scope = 'detached'}), 1, 'the host still knows the detached lock');
is(told(qr/WARNING:  redlock node \S+ has little memory left/), 6, 'each broker warns once');

empty($_) foreach @nodes;
is($app->query("SELECT redlock_try('unheard of', scope => 'session')"), 't', 'new names go on as soon as there is room');
wait_until(sub { told(qr/LOG:  redlock node \S+ has enough memory again/) == 3 }, 'which the log tells');
is(told(qr/WARNING:  redlock node \S+ has little memory left/), 6, 'and nothing more');

# A node that hides its memory, or has no limit.
{
	my $unlimited = redis_node();

	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@nodes, $unlimited) . "'");
	$host->reload;
	ok($host->poll_query_until('postgres',
			"SELECT memory_used > 0 AND memory_limit IS NULL FROM redlock_nodes WHERE node = '@{[$unlimited->address]}' AND state = 'ready'"),
		'of a node without a limit redlock_nodes tells what it uses');
}

done_testing();

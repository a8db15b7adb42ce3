# Keys of other types under the names of locks, for example Redisson's locks, which are hashes.
#
# Protects from: another program's lock reported as a fault of healthy nodes, or overwritten or
# deleted; a wait not ending with the other program's lock; a holder hearing late, or never, of a
# key of another type in place of its lock; a key of another type in place of a counter or queue
# breaking more than the command at this node, or reported as permits that others hold.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $redisson = '8743c9c0-0795-4907-87fd-6c719a6b4586:58';
# commands that make a key, and the texts about the key
my %kinds = (
	'a lock of Redisson' => [ qq{redis.call('HINCRBY', KEY, '$redisson', 1)}, "a Redisson lock of $redisson" ],
	'a read lock of Redisson' =>
	  [ qq{redis.call('HSET', KEY, 'mode', 'read') redis.call('HSET', KEY, '$redisson', 1)}, "a Redisson lock of $redisson" ],
	'a write lock of Redisson' =>
	  [ qq{redis.call('HSET', KEY, 'mode', 'write') redis.call('HSET', KEY, '$redisson:write', 1)}, "a Redisson lock of $redisson" ],
	'another hash' => [ q{redis.call('HSET', KEY, 'color', 'red')}, 'a key of type hash' ],
	'a long hash' => [ q{for i = 1, 5000 do redis.call('HSET', KEY, 'field ' .. i, string.rep('x', 100)) end}, 'a key of type hash' ],
	'a list' => [ q{redis.call('RPUSH', KEY, 'a', 'b')}, 'a key of type list' ],
	'a set' => [ q{redis.call('SADD', KEY, 'a', 'b')}, 'a key of type set' ],
	'a sorted set' => [ q{redis.call('ZADD', KEY, 1, 'a')}, 'a key of type zset' ],
	'a stream' => [ q{redis.call('XADD', KEY, '*', 'a', 'b')}, 'a key of type stream' ],
);

# Users with the rights of docs/how-to/permissions.md, but without TYPE and HSCAN (limited), or
# without HSCAN (untyped).
my @rights = slurp_file('docs/how-to/permissions.md') =~ /^ACL SETUSER redlock on >secret (.*)$/m ? split(/ /, $1) : die 'no rights';
my @nodes = redis_nodes(3);
# a busy machine is no error of the nodes
my $conf = "redlock.ttl = '20s'\nredlock.node_timeout = '10s'\nredlock.on_loss = 'error'";
my $host = redlock_cluster('a', nodes => \@nodes, conf => $conf);
$_->cli(qw(ACL SETUSER limited on >secret), grep { !/^\+(?:type|hscan)$/ } @rights) foreach @nodes;
$_->cli(qw(ACL SETUSER untyped on >secret), grep { $_ ne '+hscan' } @rights) foreach @nodes;
my $limited = redlock_cluster('b', nodes => [ map { $_->url(user => 'limited', password => 'secret') } @nodes ], conf => $conf);
my $untyped = redlock_cluster('c', nodes => [ map { $_->url(user => 'untyped', password => 'secret') } @nodes ], conf => $conf);
my ($admin, $s) = map { session($host) } 1, 2;

# Replaces the key of a lock, with a life in seconds.
sub make
{
	my ($kind, $name, $life, @at) = @_;
	my $script = "local KEY = ARGV[1] redis.call('DEL', KEY) $kinds{$kind}[0]";

	$script .= " redis.call('EXPIRE', KEY, $life)" if $life;
	$_->cli('EVAL', $script, 0, "redlock:$name") foreach @at ? @at : @nodes;
	return;
}

# A digest of the key's content at each node.
sub what_is_there
{
	my ($name) = @_;
	return join ' ', map { $_->cli('EVAL', q{return redis.sha1hex(redis.call('DUMP', ARGV[1]))}, 0, "redlock:$name") } @nodes;
}

sub no_node_has_an_error
{
	my ($what, @hosts) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($_->safe_psql('postgres', "SELECT string_agg(coalesce(last_error, 'none'), ', ') FROM redlock_nodes WHERE state = 'ready'"),
		'none, none, none', "$what: no node has an error, " . $_->name)
	  foreach @hosts ? @hosts : $host;
	return;
}

# A session of the host waits for the lock, and hears the reason.
sub told_while_waiting
{
	my ($at, $name) = @_;
	my $told;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$told = $at->safe_psql('postgres', "SELECT held_by FROM redlock_locks WHERE resource = '$name' AND state = 'waiting'");
			return $told ne '';
		},
		"a session waits for $name");
	return $told;
}

# ---- each type, each kind of call ----

foreach my $kind (sort keys %kinds)
{
	my $name = "job of $kind";
	my $said = $kinds{$kind}[1];

	make($kind, $name);
	my $before = what_is_there($name);

	is($s->query("SELECT redlock_try('$name')"), 'f', "$kind: a try is refused");
	is($s->query("SELECT redlock_try('$name', mode => 'shared')"), 'f', "$kind: so is a try in shared mode");
	is($s->query("SELECT redlock_try('$name', permits => 3)"), 'f', "$kind: so is a try for a permit");
	is($s->query("SELECT redlock_try_all(ARRAY['free', '$name'])"), 'f', "$kind: so is a try for several");
	is($s->query("SELECT redlock_try_all(ARRAY['free', '$name'], mode => 'shared')"), 'f', "$kind: and in shared mode");
	foreach my $more ('', ", mode => 'shared'")
	{
		my $result = $s->run("SELECT redlock_acquire('$name', wait => '150 ms'$more)");

		is($result->{state}, '55P03', "$kind: a wait ends$more");
		is($result->{detail}, "The lock was granted to: $said.", "$kind: it says what holds the lock$more");
	}
	is($s->run("SELECT redlock_acquire('$name', wait => '150 ms', permits => 3)")->{state}, '55P03', "$kind: a wait for a permit ends");
	is($s->run("SELECT redlock_acquire_all(ARRAY['free', '$name'], wait => '150 ms')")->{state}, '55P03', "$kind: a wait for several locks ends, too");
	my $result = $s->run("CALL redlock_run('$name', 'SELECT 1/0', record => true)");
	is($result->{state}, '', "$kind: a run is skipped");
	like($result->{err}, qr/NOTICE/, "$kind: with a notice");
	like($admin->query("SELECT status || ': ' || message FROM redlock_runs WHERE resource = '$name'"), qr/^skipped: .*\Q$said\E/, "$kind: its record says why");
	is(what_is_there($name), $before, "$kind: nothing has changed the key");
	no_node_has_an_error($kind);

	# waiters get the lock after the other program's release
	foreach my $more ('', ", mode => 'shared'", ', permits => 3')
	{
		make($kind, $name);
		$s->send("SELECT redlock_acquire('$name', scope => 'session'$more)");
		is(told_while_waiting($host, $name), $said, "$kind: the view says what holds the lock$more")
		  if $more !~ /permits/;
		wait_until(sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource = '$name' AND state = 'waiting'") == 1 }, "$kind: it waits$more");
		$_->cli('DEL', "redlock:$name") foreach @nodes;
		is($s->result->{state}, '', "$kind: a wait gets the lock when the key is deleted$more");
		is($s->query("SELECT redlock_release('$name')"), 't', "$kind: and releases it$more");
		wait_until(sub { key_count("redlock:$name", @nodes) == 0 }, "$kind: nothing is left$more");
	}
	no_node_has_an_error($kind);
}
is($s->query("SELECT redlock_try('free')"), 't', 'refused calls for several leave nothing behind');

# ---- the key expires ----

make('a lock of Redisson', 'short', 1);
is($s->run("SELECT redlock_acquire('short', scope => 'session')")->{state}, '', 'a wait gets the lock when the key has expired');
$s->query('SELECT redlock_release_all()');

# ---- on some of the nodes ----

make('a lock of Redisson', 'one', 0, $nodes[0]);
is($s->query("SELECT redlock_try('one', scope => 'session')"), 't', 'one node of three is no majority');
is($s->query("SELECT redlock_release('one')"), 't', 'the lock is released');
is($nodes[0]->cli('TYPE', 'redlock:one'), 'hash', 'and the other key stays');
no_node_has_an_error('one node of three');

make('a lock of Redisson', 'two', 0, @nodes[ 0, 1 ]);
is($s->query("SELECT redlock_try('two')"), 'f', 'two nodes of three are a majority');
wait_until(sub { key_count('redlock:two', $nodes[2]) == 0 }, 'the grant of the third is released');

# ---- nodes that do not tell the type ----

foreach my $at ([ $limited, sub { 'a key that is not a string' } ], [ $untyped, sub { $_[0] =~ /hash|Redisson/ ? 'a key of type hash' : $kinds{ $_[0] }[1] } ])
{
	my ($other, $says) = @$at;
	my $session = session($other);

	foreach my $kind ('a lock of Redisson', 'another hash', 'a list')
	{
		my $name = $other->name . " $kind";

		make($kind, $name);
		is($session->query("SELECT redlock_try('$name', $_)"), 'f', "without rights: $kind refuses a try, $_")
		  foreach "mode => 'exclusive'", "mode => 'shared'", 'permits => 2';
		is($session->run("SELECT redlock_acquire('$name', wait => '100 ms')")->{detail}, 'The lock was granted to: ' . $says->($kind) . '.',
			"without rights: $kind is told as well as may be");
		$session->send("SELECT redlock_acquire('$name', scope => 'session')");
		is(told_while_waiting($other, $name), $says->($kind), 'also by the view');
		$_->cli('DEL', "redlock:$name") foreach @nodes;
		is($session->result->{state}, '', "without rights: a wait gets the lock when $kind is deleted");
		$session->query('SELECT redlock_release_all()');
	}
	no_node_has_an_error('without rights', $other);
	$session->quit;
}

# ---- in place of a held lock ----

# A stranger's string and hash replace keys at some nodes; both locks fare the same.
foreach my $at ([ 'a minority', $nodes[0] ], [ 'all', @nodes ])
{
	my ($where, @there) = @$at;
	my $ttl = @there == 1 ? '15 s' : '5 s';

	foreach my $more ('exclusive', 'shared')
	{
		my @holders = map { session($host) } 1, 2;
		my ($string, $hash) = map { "$_ at $where, $more" } qw(string hash);

		$holders[0]->query("SELECT redlock_acquire('$string', scope => 'session', ttl => '$ttl', mode => '$more')");
		$holders[1]->query("SELECT redlock_acquire('$hash', scope => 'session', ttl => '$ttl', mode => '$more')");
		$_->cli('SET', "redlock:$string", 'stranger') foreach @there;
		make('a lock of Redisson', $hash, 0, @there);
		if (@there == 1)
		{
			my $enough = $admin->query('SELECT renewed FROM redlock_stats') + 4;

			wait_until(sub { $admin->query('SELECT renewed FROM redlock_stats') >= $enough }, "leases are renewed: $hash");
			is($admin->query("SELECT string_agg(DISTINCT state, ', ') FROM redlock_locks WHERE resource IN ('$string', '$hash')"),
				'held', "both are kept: $hash");
			is($holders[1]->query("SELECT redlock_check('$hash') > '0' AND redlock_release('$hash')"), 't', "the other key spares the lock: $hash");
		}
		else
		{
			wait_until(
				sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource IN ('$string', '$hash') AND state = 'lost'") == 2 },
				"both are lost: $hash");
			my @results = map { $_->run('SELECT 1') } @holders;
			is($results[1]{state}, $results[0]{state}, "with the same error: $hash");
			is($results[1]{message} =~ s/\Q$hash\E/NAME/gr, $results[0]{message} =~ s/\Q$string\E/NAME/gr, 'and message');
			wait_until(sub { slurp_file($host->logfile) =~ /lease on redlock "\Q$hash\E" of .* was lost.*\n.*DETAIL:  (.*)/ }, "the log tells it: $hash");
			my ($of_hash, $of_string) =
			  map { slurp_file($host->logfile) =~ /lease on redlock "\Q$_\E" of .* was lost.*\n.*DETAIL:  (.*)/ } $hash, $string;
			# the number of nodes that have reported by then may differ
			is(join(' ', map { /another session took the lock there/ ? 'yes' : 'no' } $of_hash, $of_string), 'yes yes', 'with the same reason');
			cmp_ok(scalar(() = $of_hash =~ /another session took the lock there, or a session released the lock by force/g), '>=', 2, 'a majority of the nodes reports another holder');
		}
		$_->quit foreach @holders;
		wait_until(sub { $admin->query('SELECT releasing FROM redlock_stats') == 0 }, "all is released: $hash");
		is($_->cli('TYPE', "redlock:$hash"), 'hash', "the other key stays: $hash") foreach @there;
	}
}
no_node_has_an_error('in place of a lock');

# ---- in place of a lock's other keys ----

# at one node: the command that needs the key
my %companions = (
	'token' => [ '\0token', "SELECT redlock_try('NAME')" ],
	'readers' => [ '\0readers', "SELECT redlock_try('NAME', mode => 'shared')", "SELECT redlock_acquire('NAME', scope => 'session', mode => 'shared')" ],
	'queue' => [ '\1', "SELECT redlock_try('NAME', permits => 2)" ],
);
foreach my $which (sort keys %companions)
{
	my ($suffix, $sql, $before) = @{ $companions{$which} };
	my $name = "with a $which of another type";
	my $other = session($limited);
	my $put = sub { $_->cli('EVAL', "redis.call('DEL', ARGV[1] .. '$suffix') redis.call('RPUSH', ARGV[1] .. '$suffix', 'a')", 0, "redlock:$name") foreach @_ };
	my $errors = sub {
		return $admin->query("SELECT string_agg(node, ' ' ORDER BY node) FROM redlock_nodes WHERE last_error ~ '^WRONGTYPE' AND state = 'ready'");
	};

	$other->query($before =~ s/NAME/$name/r) if $before;
	$put->($nodes[1]);
	is($s->query($sql =~ s/NAME/$name/r), 't', "$which: the other nodes grant the lock");
	wait_until(sub { $errors->() eq $nodes[1]->address }, "$which: that node alone has an error")
	  or diag($admin->query('SELECT node, state, last_error FROM redlock_nodes'));
	is($s->query("SELECT redlock_try('another $which')"), 't', "$which: the nodes grant other locks");

	# such a key at all nodes fails the call
	$name = "with each $which of another type";
	$put->(@nodes);
	if ($which ne 'readers')
	{
		my $result = $s->run($sql =~ s/NAME/$name/r);
		is($result->{state}, '08006', "$which: at all nodes there is no quorum");
		like($result->{detail}, qr/WRONGTYPE/, 'and the error says why');
	}
	if ($which eq 'queue')
	{
		my $result = $s->run("SELECT redlock_acquire('$name', permits => 2, wait => '1 s')");
		is($result->{state}, '55P03', "$which: a wait for a permit ends");
		is($result->{detail}, "In place of the queue of waiters, the nodes have another program's key: a key of type list.", 'and says why');
	}
	$other->quit;

	# the broker sends a release without an answer again: no node may answer with an error then
	foreach my $kept ("with a $which of another type", $name)
	{
		$_->cli('EVAL', "redis.call('DEL', ARGV[1] .. '$suffix')", 0, "redlock:$kept") foreach @nodes;
	}

	# another user makes another node, without the former error
	$host->append_conf('postgresql.conf', redlock_conf(nodes => [ map { $_->url(user => $which, password => 'secret') } @nodes ]));
	$_->cli(qw(ACL SETUSER), $which, qw(on >secret ~* &* +@all)) foreach @nodes;
	$host->reload;
	wait_until(sub { $admin->query("SELECT count(last_error) FROM redlock_nodes WHERE state = 'ready'") == 0
		&& $admin->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") == 3 }, 'the errors are forgotten');
}

done_testing();

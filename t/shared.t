# Shared locks of three hosts.
#
# Protects from: two modes at a time; readers waiting for each other, on one host or on several; a
# plain Redlock client taking a shared lock; tokens not growing from one mode to the other;
# readers not hearing of the loss of their shared lease; keys staying after the last reader, or
# going earlier; a writer waiting behind a stream of readers, or readers behind writers; a new
# broker forgetting the readers.
#
# Tokens and counts show the order; times do not.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '20s'";
my @hosts = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);

sub acquire
{
	my ($name, $mode, $more) = @_;
	return "SELECT redlock_acquire('$name', scope => 'session', mode => '$mode'" . ($more // '') . ')';
}

# A session waits after a refusal of the nodes.
sub waits_at_nodes
{
	my ($host, $name) = @_;
	return $host->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM redlock_locks WHERE resource = '$name' AND state = 'waiting' AND held_by IS NOT NULL");
}

sub keys_left
{
	my ($name) = @_;
	my $count = 0;

	foreach my $node (@nodes)
	{
		$count += $node->cli('EXISTS', "redlock:$name");
	}
	return $count;
}

# ---- many readers at a time, none beside a writer ----

{
	my @readers = map { my $host = $_; map { session($host) } 1, 2 } @hosts;
	my ($writer, $other) = map { session($hosts[$_]) } 0, 1;

	my $before = $writer->query(acquire('doc', 'exclusive'));
	$writer->query("SELECT redlock_release('doc')");
	my @tokens = map { $_->query(acquire('doc', 'shared')) } @readers;
	is(scalar(grep { $_ > $before } @tokens), 6, 'six readers of three hosts, each token later than the one before');
	foreach my $h (0 .. 2)
	{
		is($tokens[ 2 * $h ], $tokens[ 2 * $h + 1 ], 'two of one host share a lease, ' . $hosts[$h]->name);
		is( $readers[ 2 * $h ]->query(
				"SELECT count(DISTINCT pid), count(DISTINCT token), min(mode) FROM redlock_locks WHERE resource = 'doc' AND state = 'held'"),
			'2|1|shared', 'the view has both');
	}
	is($writer->query("SELECT redlock_try('doc', scope => 'session')"), 'f', 'no writer of the same host gets the lock beside readers');
	is($other->query("SELECT redlock_try('doc', scope => 'session', mode => 'shared')"), 't', 'a try to share it is granted');
	$other->query("SELECT redlock_release('doc')");

	# a plain client, and an observer
	foreach my $node (@nodes)
	{
		is($node->cli('SET', 'redlock:doc', 'plain', 'NX', 'PX', 1000), '', 'a plain client finds it taken');
		like($node->cli('GET', 'redlock:doc'), qr/^[0-9a-f]{32}:\d{9}:[0-9a-f]{16}= (cluster="\w+" )?host="/, 'the value says that it is shared');
	}

	# a reader that leaves deletes no key
	$_->query("SELECT redlock_release('doc')") foreach @readers[ 0 .. 4 ];
	is(keys_left('doc'), 3, 'the last reader still has the keys');
	is($readers[5]->query("SELECT redlock_check('doc') > '0'"), 't', 'and knows');
	my $result = $other->run("SELECT redlock_acquire('doc', wait => '200 ms', scope => 'session')");
	is("$result->{state} $result->{message}", '55P03 could not acquire redlock "doc" within 200 ms (wait)', 'a writer waits for the last reader');
	like($result->{detail}, qr/^The lock was granted to: those who share it, last to join: cluster="\w+" host="\S+" database="postgres" pid=\d+ /, 'and is told so');

	$other->send(acquire('doc', 'exclusive'));
	ok(waits_at_nodes($hosts[1], 'doc'), 'it waits at the nodes');
	is($readers[0]->query("SELECT redlock_try('doc', scope => 'session', mode => 'shared')"), 'f', 'nobody else comes in between, on any host');
	is($readers[4]->query("SELECT redlock_try('doc', scope => 'session', mode => 'shared')"), 'f', 'nor on the host of a reader');
	$readers[5]->query("SELECT redlock_release('doc')");
	my $token = $other->result->{out};
	is(scalar(grep { $token > $_ } @tokens), 6, 'the writer has a larger token than all readers before');
	is($readers[0]->query("SELECT redlock_try('doc', scope => 'session', mode => 'shared')"), 'f', 'no reader joins while the writer holds the lock');
	my @waiting = @readers[ 0, 2, 4, 5 ];
	$_->send(acquire('doc', 'shared')) foreach @waiting;
	ok(waits_at_nodes($hosts[2], 'doc'), 'readers wait for the writer');
	$other->query("SELECT redlock_release('doc')");
	my @later = map { $_->result->{out} } @waiting;
	is(scalar(grep { $_ > $token } @later), 4, 'and get it together, each with a larger token');
	$_->query("SELECT redlock_release('doc')") foreach @waiting;
	ok(wait_until(sub { keys_left('doc') == 0 }, 'the key'), 'nothing is left');
	foreach my $node (@nodes)
	{
		is($node->cli('EXISTS', "redlock:doc\0readers"), 0, 'no reader is left at the node');
	}
	$_->quit foreach @readers, $writer, $other;
}

# ---- renewed, by a new broker, too ----

{
	my @readers = map { session($hosts[$_]) } 0, 0, 1;

	$_->query(acquire('renewed', 'shared', ", ttl => '2 s'")) foreach @readers;
	my $broker = broker_pid($hosts[0]);
	kill 'TERM', $broker;
	ok(wait_until(sub { (broker_pid($hosts[0]) // $broker) != $broker }, 'another broker'), 'another broker');
	my $renewed = $hosts[0]->safe_psql('postgres', 'SELECT renewed FROM redlock_stats');
	ok( $hosts[0]->poll_query_until('postgres', "SELECT renewed > $renewed + 3 FROM redlock_stats"), 'the new broker renews the shared lease');
	is(join(' ', map { $_->query("SELECT redlock_check('renewed') > '0'") } @readers), 't t t', 'all have it yet');
	is(keys_left('renewed'), 3, 'at all nodes');
	$_->query("SELECT redlock_release('renewed')") foreach @readers;
	ok(wait_until(sub { keys_left('renewed') == 0 }, 'the key'), 'and none after the last');
	$_->quit foreach @readers;
}

# ---- all readers hear of a loss ----

{
	my @readers = map { session($hosts[0]) } 1 .. 3;
	my $bystander = session($hosts[0]);

	my $end = time + 20; # before the lease expires
	$_->query(acquire('lost', 'shared', ", ttl => '30 s'")) foreach @readers;
	# readers also share another lock for a moment, at the same place of an entry of their process
	my $twin = $bystander->query(
		"SELECT min(n) FROM (SELECT 'twin ' || i AS n FROM generate_series(1, 1000) i) t WHERE (hashtextextended(n, 0) # hashtextextended('lost', 0)) & 63 = 0");
	$_->query(acquire($twin, 'shared')) foreach @readers;
	$_->query("SELECT redlock_release('$twin')") foreach @readers;
	$bystander->query(acquire('in order', 'shared'));
	$_->cli('SET', 'redlock:lost', 'somebody') foreach @nodes;
	$_->send('SELECT count(*) FROM generate_series(1, 100000000000)') foreach @readers;
	foreach my $reader (@readers)
	{
		my $result = $reader->result;
		is("$result->{state} $result->{message}", '57014 canceling statement because the lease on redlock "lost" was lost', 'a session is told');
	}
	cmp_ok(time, '<', $end, '... by the broker');
	is($bystander->query("SELECT redlock_check('in order') > '0'"), 't', 'a session that shares another lock is not cancelled');
	$_->run("SELECT redlock_release('lost')") foreach @readers;
	$_->cli('DEL', 'redlock:lost') foreach @nodes;
	cmp_ok($readers[0]->query(acquire('lost', 'shared')), '>', 0, 'the next may have it');
	$_->quit foreach @readers, $bystander;
}

# ---- no quorum, while another session asks with a wait ----

{
	my ($patient, $other) = map { session($hosts[0]) } 1, 2;

	$_->pause foreach @nodes[ 0, 1 ];
	$patient->send(acquire('no quorum', 'shared', ", wait => '@{[$PostgreSQL::Test::Utils::timeout_default]} s'"));
	wait_until(sub { $hosts[0]->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'no quorum'") }, 'one asks');
	foreach my $call ("redlock_try('no quorum', mode => 'shared')", "redlock_acquire('no quorum', mode => 'shared', wait => '0')", "redlock_acquire('no quorum', mode => 'shared')")
	{
		is($other->run("SELECT $call")->{state}, '08006', "$call is told");
	}
	$_->resume foreach @nodes[ 0, 1 ];
	is($patient->result->{state}, '', 'a patient waiter gets the lock when the quorum is back');
	$_->quit foreach $patient, $other;
	wait_nodes_ready($_, scalar @nodes) foreach @hosts;
}

# ---- cancelled, and gone ----

{
	my ($holder, $first, $second) = map { session($hosts[$_]) } 1, 0, 0;

	$holder->query(acquire('cancel', 'exclusive'));
	my $pid = $first->query('SELECT pg_backend_pid()');
	$_->send(acquire('cancel', 'shared')) foreach $first, $second;
	ok(waits_at_nodes($hosts[0], 'cancel'), 'of two waiting readers, only one asks the nodes');
	my $asks = $hosts[0]->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = 'cancel' AND state = 'waiting'");
	$hosts[0]->safe_psql('postgres', "SELECT pg_cancel_backend($asks)");
	my ($one, $other) = $asks == $pid ? ($first, $second) : ($second, $first);
	is($one->result->{state}, '57014', 'the reader that asks the nodes is cancelled');
	$holder->query("SELECT redlock_release('cancel')");
	cmp_ok($other->result->{out}, '>', 0, 'the other asks then, and gets it');
	$hosts[0]->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $other->query('SELECT pg_backend_pid()') . ')');
	$other->run('SELECT 1');
	cmp_ok($holder->query(acquire('cancel', 'exclusive')), '>', 0, 'the end of a reading session frees the lock for a writer');
	$_->quit foreach $holder, $first, $second;
}

# ---- kept by keep_idle, until another host recalls the lease ----

{
	my ($reader, $other) = map { session($hosts[$_]) } 0, 1;

	$reader->query(acquire('idle', 'shared', ", keep_idle => '50 s'"));
	$reader->query("SELECT redlock_release('idle')");
	is($reader->query("SELECT state, mode FROM redlock_locks WHERE resource = 'idle'"), 'idle|shared', 'it is idle');
	is($other->query("SELECT redlock_try('idle', scope => 'session')"), 't', 'and is given up for a try of another host');
	$_->quit foreach $reader, $other;
}

# ---- in a turn of a host all its readers share the lock, also beside writers of the host ----

foreach my $writer_host (@hosts[ 1, 0 ])
{
	my %session = (shared => [ map { session($hosts[0]) } 1 .. 4 ], exclusive => [ map { session($writer_host) } 1 .. 4 ]);
	my %count;

	$_->safe_psql('postgres', 'CREATE UNLOGGED TABLE turns (mode text)') foreach @hosts[ 0, 1 ];
	foreach my $mode (keys %session)
	{
		repeat($_, "INSERT INTO turns SELECT '$mode' FROM redlock_acquire('turns', mode => '$mode'), pg_sleep(0.005)")
		  foreach @{ $session{$mode} };
	}
	$writer_host->poll_query_until('postgres', "SELECT count(*) > 800 FROM turns WHERE mode = 'exclusive'") or die;
	end_repeats($_) foreach @hosts[ 0, 1 ];
	$_->result foreach map { @$_ } values %session;
	foreach my $host (@hosts[ 0, 1 ])
	{
		$count{$_} += $host->safe_psql('postgres', "SELECT count(*) FROM turns WHERE mode = '$_'") foreach keys %session;
		$host->safe_psql('postgres', 'DROP TABLE turns, end_repeats');
	}
	# a turn of the readers has one grant of each session, a turn of the other host three
	cmp_ok($count{shared} * ($writer_host == $hosts[0] ? 2 : 6), '>', $count{exclusive},
		"$count{shared} readers, $count{exclusive} writers");
	$_->quit foreach map { @$_ } values %session;
}

# ---- a session that waits at the grant has its part of the turn, however late it runs ----

{
	my ($writer, $next) = map { session($hosts[1]) } 1, 2;
	my ($first, $late) = map { session($hosts[0]) } 1, 2;

	$writer->query(acquire('late', 'exclusive'));
	$first->send(acquire('late', 'shared'));
	ok(waits_at_nodes($hosts[0], 'late'), 'a reader of this host asks the nodes');
	$late->send(acquire('late', 'shared'));
	wait_until(sub { $hosts[0]->safe_psql('postgres', 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $late->pid) eq 'Extension' }, 'another awaits the answer');
	kill 'STOP', $late->pid;
	$writer->query("SELECT redlock_release('late')");
	$first->result;
	$next->send(acquire('late', 'exclusive'));
	ok(waits_at_nodes($hosts[1], 'late'), 'a writer of another host waits');
	kill 'CONT', $late->pid;
	cmp_ok($late->result->{out}, '>', 0, 'a reader that has waited with the first gets it, too');
	ok(!$next->done, 'before that host');
	$_->query("SELECT redlock_release('late')") foreach $first, $late;
	cmp_ok($next->result->{out}, '>', 0, 'the writer of the other host gets the lock after the readers');
	$next->query("SELECT redlock_release('late')");
	$_->quit foreach $writer, $next, $first, $late;
}

# ---- a session that waits for another lock blocks nobody ----

{
	my ($reader, $other, $writer) = map { session($hosts[$_]) } 0, 0, 1;

	$reader->query(acquire($_, 'shared')) foreach 'k1', 'k119'; # once the same place in a table
	$writer->send(acquire('k1', 'exclusive'));
	ok(waits_at_nodes($hosts[1], 'k1'), 'a writer waits');
	is($other->query("SELECT redlock_try('k119', mode => 'shared')"), 't', 'another lock is shared');
	ok( $hosts[0]->poll_query_until('postgres', "SELECT NOT redlock_try('k1', mode => 'shared')"), 'the lock with a waiting writer is not shared');
	$other->send("CALL redlock_lock('k1', scope => 'session', mode => 'shared')");
	my $pid = $other->pid;
	ok( $hosts[0]->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND state = 'active' AND backend_xmin IS NULL"),
		'who waits until the writer has had it has no snapshot');
	$reader->query("SELECT redlock_release('k1')");
	cmp_ok($writer->result->{out}, '>', 0, 'the writer has it');
	$writer->query("SELECT redlock_release('k1')");
	is($other->result->{state} // '', '', 'then the other');
	$_->quit foreach $reader, $other, $writer;
}

# ---- the view shows all waiting readers ----

{
	my ($writer, @readers) = map { session($hosts[$_]) } 1, 0, 0, 0;

	$writer->query(acquire('seen', 'exclusive'));
	$_->send(acquire('seen', 'shared')) foreach @readers;
	ok( $hosts[0]->poll_query_until('postgres',
			"SELECT string_agg(concat_ws(' ', state, mode), ', ' ORDER BY state) = 'queued shared, queued shared, waiting shared' FROM redlock_locks WHERE resource = 'seen'"),
		'redlock_locks shows waiting readers');
	$writer->query("SELECT redlock_release('seen')");
	cmp_ok($_->result->{out}, '>', 0, 'and have it together') foreach @readers;
	$_->quit foreach $writer, @readers;
}

# ---- a session that has gone gets no message, and delays none ----

{
	my ($stays, $writer) = map { session($hosts[$_]) } 0, 1;

	$stays->query(acquire('gone', 'shared'));
	foreach my $node (@nodes)
	{
		$node->cli('EVAL', "for i = 1, 40 do redis.call('HSET', ARGV[1] .. '\\0readers', string.rep('0', 31) .. i .. ':',"
			  . " '000000001:0000000000000001:1:1') end redis.call('SET', ARGV[1] .. '\\0barrier', 'no barrier')", 0, 'redlock:gone');
	}
	$writer->send(acquire('gone', 'exclusive'));
	ok( $hosts[0]->poll_query_until('postgres', "SELECT NOT redlock_try('gone', mode => 'shared')"), 'the one that lives is told');
	is($nodes[0]->cli('EVAL', "return redis.call('HLEN', ARGV[1] .. '\\0readers')", 0, 'redlock:gone'), 2, 'the others are forgotten');
	$stays->query("SELECT redlock_release('gone')");
	cmp_ok($writer->result->{out}, '>', 0, 'the writer has it');
	$_->quit foreach $stays, $writer;
}

# ---- many readers of many locks leave room for new connections ----

{
	my $small = redlock_cluster('small', nodes => \@nodes, conf => "max_connections = 30\nmax_locks_per_transaction = 10");
	my @readers = map { session($small) } 1 .. 20;
	my $full;

	foreach my $reader (@readers)
	{
		my $result = $reader->run(
			"DO \$\$ BEGIN FOR i IN 1 .. 60 LOOP PERFORM redlock_acquire('m' || i, scope => 'session', mode => 'shared'); END LOOP; END \$\$");
		$full //= "$result->{state} $result->{message}" if $result->{state};
	}
	is($full, '53400 the sessions of this server share too many redlocks', 'a reader beyond the limit gets an error');
	is($small->safe_psql('postgres', "SELECT redlock_try('m1', mode => 'shared')"), 't', 'another session connects, and shares one');
	$_->quit foreach @readers;
	$small->stop;
}

# ---- a writer that comes during a reader's request is not forgotten ----

{
	my $host_id = host_id($hosts[0]);
	my $other   = host_id($hosts[1]);
	my @readers = map { session($hosts[0]) } 1, 2;
	my $held_back;

	$hosts[0]->safe_psql('postgres', "ALTER SYSTEM SET redlock.node_timeout = '60s'");
	$hosts[0]->reload;
	$hosts[0]->poll_query_until('postgres', 'SHOW redlock.node_timeout', '1min') or die 'no reload';
	# the barrier lasts for a second, and the rest may take longer on a slow machine
	foreach my $time (1 .. 10)
	{
		$_->pause foreach @nodes[ 1, 2 ];
		$readers[0]->send(acquire('early', 'shared'));
		wait_until(sub { $nodes[0]->cli('EXISTS', 'redlock:early') }, 'one node has granted the shared lock');
		$nodes[0]->cli('EVAL',
			"return redis.call('PUBLISH', 'redlock:\\000host:$host_id', 'want\\000redlock:early\\000$other\\0005\\000')", 0);
		$hosts[0]->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'early' AND state = 'waiting'");
		$_->resume foreach @nodes[ 1, 2 ];
		$readers[0]->result;
		$held_back = $readers[1]->query("SELECT redlock_try('early', scope => 'session', mode => 'shared')") eq 'f';
		$_->query('SELECT redlock_release_all()') foreach @readers;
		last if $held_back;
	}
	ok($held_back, 'a writer announced before the quorum answers holds new readers back');
	$hosts[0]->safe_psql('postgres', 'ALTER SYSTEM RESET redlock.node_timeout');
	$hosts[0]->reload;
	$hosts[0]->poll_query_until('postgres', 'SHOW redlock.node_timeout', '500ms') or die 'no reload';
	$_->quit foreach @readers;
}

# ---- after the readers a writer comes next: the nodes refuse the lock to others ----

{
	my ($a, $b, $c) = map { host_id($_) } @hosts;
	my ($first, $writer, $last) = map { session($_) } @hosts;
	my $heard = listener($nodes[0], map { "redlock:?host:$_" } $a, $b);

	$writer->query(acquire('next', 'exclusive'));
	$first->send(acquire('next', 'shared'));
	wait_until(sub { defined $heard->waited('next', $a) }, 'a reader of the first host waits');
	$last->send(acquire('next', 'shared'));
	wait_until(sub { defined $heard->waited('next', $c) }, 'and another');
	$writer->query("SELECT redlock_release('next')");
	$_->result foreach $first, $last;
	$last->query("SELECT redlock_release('next')");
	$heard->forget;
	$writer->send(acquire('next', 'exclusive'));
	wait_until(sub { defined $heard->waited('next', $b) }, 'a writer waits again');
	$heard->quit;
	$heard = listener($nodes[0], 'redlock:next');
	$first->query("SELECT redlock_release('next')");
	$writer->result;
	wait_until(sub { $heard->named }, 'a release');
	is_deeply($heard->named, [$b], 'of two who were known that one is named');
	$heard->quit;
	$writer->query("SELECT redlock_release('next')");
	$_->quit foreach $first, $writer, $last;
}

# ---- neither mode waits for a stream of the other mode ----

# Sessions of all hosts take the lock again and again.  A session of the other mode gets the lock
# after a bounded number of grants: readers may take the lock ten thousand times a second.
foreach my $mode (qw(shared exclusive))
{
	my $one = $mode eq 'shared' ? 'exclusive' : 'shared';
	my @stream = map { my $host = $_; map { session($host) } 1 .. 3 } @hosts;
	my $session = session($hosts[2]);
	my @counting = map { session($_) } @hosts;

	foreach my $host (@hosts)
	{
		$host->safe_psql('postgres', "CREATE UNLOGGED TABLE stream_$mode (token bigint, at timestamptz DEFAULT clock_timestamp())");
	}
	repeat($_, "INSERT INTO stream_$mode VALUES (redlock_acquire('stream $mode', mode => '$mode'))") foreach @stream;
	foreach my $host (@hosts)
	{
		$host->poll_query_until('postgres', "SELECT count(*) > 20 FROM stream_$mode") or die;
	}
	foreach my $time (1 .. 5)
	{
		# the stream gets no grant beside this session, so the count is exact
		my ($from, $token, $to) = split /\|/,
		  $session->query("SELECT clock_timestamp(), redlock_acquire('stream $mode', scope => 'session', mode => '$one'), clock_timestamp()");
		my $passed = 0;

		cmp_ok($token, '>', 0, "one comes into the stream of the mode $mode");
		$passed += $_->query("SELECT count(*) FROM stream_$mode WHERE at BETWEEN '$from' AND '$to'") foreach @counting;
		$session->query("SELECT redlock_release('stream $mode')");
		cmp_ok($passed, '<', $mode eq 'shared' ? 20000 : 3000, "after $passed others");
	}
	end_repeats($_) foreach @hosts;
	$_->result foreach @stream;
	$_->query('DROP TABLE end_repeats') foreach @counting;
	$_->quit foreach @stream, $session, @counting;
}

$_->stop foreach @hosts;
done_testing();

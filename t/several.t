# Several locks in one call, on several hosts: all or none, and no deadlock.
#
# Protects from: a lock kept while its call waits for an earlier lock; locks left behind by a
# cancelled wait; hosts waiting for each other in a circle; an error without a circle; a real
# circle without an end; a call waiting on after the loss of one of its locks, then counting as
# complete; a call waiting for one lock after another, and coming last in each queue.
#
# COMMITS in the environment is the number of transactions with locks in any order.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $commits = $ENV{COMMITS} // 300;
my @nodes   = redis_nodes(3);
my $conf    = "redlock.ttl = '60s'\ndeadlock_timeout = '20ms'\nmax_connections = 40";
my @hosts   = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);
my ($host_a, $host_b) = @hosts;
my $session_a = session($host_a);
my $session_b = session($host_b);
my $other_b   = session($host_b);

# A host's sessions as "name state", separated by blanks.
sub locks
{
	my ($host) = @_;
	return $host->safe_psql('postgres',
		"SELECT coalesce(string_agg(resource || ' ' || state, ', ' ORDER BY resource COLLATE \"C\"), '') FROM redlock_locks WHERE state <> 'releasing'");
}

# Waits until the host of a session has read the messages that have arrived: the broker reads all
# connections before it answers a request.
sub hears_what_came
{
	my ($session) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($session->query("SELECT redlock_try('elsewhere', scope => 'session') AND redlock_release('elsewhere')"),
		't', 'the holder has heard so');
}

sub nothing_is_left
{
	my ($after) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$_->query('SELECT redlock_release_all()') foreach $session_a, $session_b;
	wait_until(sub { !grep { locks($_) ne '' } @hosts }, "$after: nothing is left");
	wait_until(sub { !grep { $_->cli('KEYS', 'redlock:[a-z]') ne '' } @nodes }, "$after: at no node");
}

# ---- locks that a call keeps, releases and waits for ----

$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a', 'p'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'a held, m waiting' }, 'the call keeps the locks before the refused lock, and releases the rest');
wait_until(sub { $session_a->query("SELECT redlock_try_all(ARRAY['p', 'z'], scope => 'session')") eq 't' }, 'another host gets the locks that the call released');
is($session_a->query("SELECT redlock_try('a')"), 'f', 'another host does not get the kept lock');
is($session_a->query("SELECT redlock_release('m')"), 't', 'the awaited lock is released');
wait_until(sub { locks($host_b) eq 'a held, m held, p waiting' }, 'and got; then the rest is asked for');
$session_a->query("SELECT redlock_release('p')");
wait_until(sub { locks($host_b) eq 'a held, m held, p held, z waiting' }, 'the call waits for the last lock');
$session_a->query("SELECT redlock_release('z')");
my $tokens = $session_b->result->{out};
is($session_b->query("SELECT ARRAY[redlock_token('z'), redlock_token('m'), redlock_token('a'), redlock_token('p')]"),
	$tokens, 'all are held, with the tokens in the order given');
nothing_is_left('after a wait');

# ---- at the gate: another session of this host has one of the locks ----

$other_b->query("SELECT redlock_acquire('m', scope => 'session')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'm held, m queued' }, 'who waits at a gate asks the nodes for nothing');
is($session_a->query("SELECT redlock_try_all(ARRAY['a', 'z'], scope => 'session')"), 't', 'another host gets the remaining locks');
$other_b->query("SELECT redlock_release('m')");
wait_until(sub { locks($host_b) =~ /a waiting/ }, 'then the call waits for the first refused lock');
$session_a->query('SELECT redlock_release_all()');
isnt($session_b->result->{out}, '', 'and gets all');
nothing_is_left('after a gate');

# the holder has lost the gate, and blocks no session there
$other_b->query("SELECT redlock_acquire('m', scope => 'session')");
$other_b->query('BEGIN; SELECT pg_advisory_unlock_all()');
$session_b->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session')");
wait_until(sub { locks($host_b) =~ /a held/ }, 'a lock whose owner lost its gate is waited for');
ok(!$session_b->done, 'as long as it is held');
is($session_a->query("SELECT redlock_try('z', scope => 'session')"), 't', 'with what is behind it free');
$session_a->query("SELECT redlock_release('z')");
$other_b->query("SELECT redlock_release('m'); COMMIT");
isnt($session_b->result->{out}, '', 'then all are held');
nothing_is_left('after a lost gate');

# ---- a call keeps the place of its first wait among the waiting hosts ----

# B waits for m, and then for n, for which C waits, too.
{
	my ($b, $c)   = map { host_id($_) } @hosts[ 1, 2 ];
	my $session_c = session($hosts[2]);
	my $heard     = listener($nodes[0], 'redlock:?host:' . host_id($host_a), 'redlock:[mn]');

	$session_a->query("SELECT redlock_acquire_all(ARRAY['m', 'n'], scope => 'session')");
	$session_b->send("SELECT redlock_acquire_all(ARRAY['m', 'n'], scope => 'session')");
	wait_until(sub { ($heard->waited('m', $b) // 0) >= 1000000 }, 'B has waited for the first lock for a second');
	$session_c->send("SELECT redlock_acquire('n', scope => 'session')");
	wait_until(sub { defined $heard->waited('n', $c) }, 'C waits for the second');
	$heard->forget;
	$session_a->query("SELECT redlock_release('m')");
	wait_until(sub { defined $heard->waited('n', $b) }, 'now B does, too');
	hears_what_came($session_a);
	$heard->forget;
	$session_a->query("SELECT redlock_release('n')");
	wait_until(sub { $heard->named }, 'which is released');
	is_deeply($heard->named, [ $b, $c ], 'the next is B, as it has waited for longer');
	each_in_turn('SELECT redlock_release_all()', $session_b, $session_c);

	# B waits at the gate of n before it asks the nodes for m.  The listener ignores messages of n.
	$heard->quit;
	$heard = listener($nodes[0], 'redlock:?host:' . host_id($host_a), 'redlock:m');
	$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
	$other_b->query("SELECT redlock_acquire('n', scope => 'session')");
	$session_b->send("SELECT redlock_acquire_all(ARRAY['m', 'n'], scope => 'session')");
	wait_until(sub { locks($host_b) eq 'n held, n queued' }, 'B waits at a gate');
	ok( $host_b->poll_query_until('postgres', "SELECT clock_timestamp() - query_start > '1 s' FROM pg_stat_activity WHERE pid = " . $session_b->pid),
		'for a second');
	$heard->forget;
	$session_c->send("SELECT redlock_acquire('m', scope => 'session')");
	wait_until(sub { defined $heard->waited('m', $c) }, 'C waits for another lock');
	$other_b->query("SELECT redlock_release('n')");
	wait_until(sub { defined $heard->waited('m', $b) }, 'which B asks for when it has passed the gate');
	hears_what_came($session_a);
	$heard->forget;
	$session_a->query("SELECT redlock_release('m')");
	wait_until(sub { $heard->named }, 'it is released');
	is_deeply($heard->named, [ $b, $c ], 'the next is B, as it has waited for longer');
	each_in_turn('SELECT redlock_release_all()', $session_b, $session_c);
	$session_c->quit;
	$heard->quit;
	nothing_is_left('after turns');
}

# a released lock goes to the session at its gate, without the nodes
$host_b->safe_psql('postgres', "ALTER SYSTEM SET redlock.node_timeout = '20s'");
$host_b->reload;
wait_until(sub { $session_b->query('SHOW redlock.node_timeout') eq '20s' }, 'B has patience with its nodes');
my $handed_over = "SELECT handed_over FROM redlock_stats";
my $before = $host_b->safe_psql('postgres', $handed_over);
$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
$_->pause foreach @nodes;
$session_b->send("SELECT redlock_acquire_all(ARRAY['m', 'z'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'm waiting, z waiting' }, 'two are asked for');
$other_b->send("SELECT redlock_acquire('z', scope => 'session')");
wait_until(sub { locks($host_b) =~ /z queued/ }, 'and another session waits at a gate');
$_->resume foreach @nodes;
isnt($other_b->result->{out}, '', 'the session at the gate gets the lock');
is($host_b->safe_psql('postgres', $handed_over), $before + 1, 'from who had to give it back');
$session_a->query('SELECT redlock_release_all()');
$other_b->query('SELECT redlock_release_all()');
isnt($session_b->result->{out}, '', 'and that one gets all at last');
$host_b->safe_psql('postgres', 'ALTER SYSTEM RESET redlock.node_timeout');
$host_b->reload;
nothing_is_left('after what was released');

# ---- tries ----

$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
is($session_b->query("SELECT redlock_try_all(ARRAY['a', 'm', 'z'], scope => 'session')"), 'f', 'a try is refused by one');
is($session_b->query("SELECT redlock_try_all(ARRAY['a', 'z'], scope => 'session')"), 't', 'and leaves nothing in the way of its own host');
is($session_b->query("SELECT redlock_try_all(ARRAY['a', 'm', 'z'], scope => 'session')"), 'f', 'a call by the holder of some of the locks is refused, too');
is($session_b->query("SELECT redlock_release('a'), redlock_release('z')"), 't|t', 'which are counted as before');
$other_b->query("SELECT redlock_acquire('n', scope => 'session')");
is($session_b->query("SELECT redlock_try_all(ARRAY['a', 'n', 'z'], scope => 'session')"), 'f', 'one of this host refuses as well');
my $refused = $session_b->run("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], wait => '0')");
is($refused->{state}, '55P03', 'wait => 0 is an error');
is($refused->{message}, 'redlock "m" is held by another', 'the error names the refused lock');
like($refused->{detail}, qr/^The lock was granted to: .*pid=@{[$session_a->pid]}\b/, 'and its holder');
$other_b->query('SELECT redlock_release_all()');

# ---- waits that end without the locks ----

my $late = $session_b->run("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], wait => '300 ms')");
is($late->{state}, '55P03', 'the time is over');
is($late->{message}, 'could not acquire redlock "m" within 300 ms (wait)', 'the error names what was waited for');
$late = $session_b->run("SET lock_timeout = '200 ms'; SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session')");
is($late->{message}, 'could not acquire redlock "m" within 200 ms (lock_timeout)', 'lock_timeout counts for all together');
$session_b->query('RESET lock_timeout');
is(locks($host_b), '', 'nothing is held');

foreach my $end ('cancel', 'terminate')
{
	my $victim = session($host_b);

	$victim->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session', hold_at_least => '10 min')");
	wait_until(sub { locks($host_b) eq 'a held, m waiting' }, "$end: it waits");
	$host_b->safe_psql('postgres', "SELECT pg_${end}_backend(" . $victim->pid . ')');
	$victim->result;
	$victim->quit;
	wait_until(sub { locks($host_b) eq '' }, "$end: what it had is released");
	wait_until(sub { key_count('redlock:a', @nodes) + key_count('redlock:z', @nodes) == 0 },
		"$end: and not kept by hold_at_least, as nobody held it");
}
nothing_is_left('after waits in vain');

# ---- an idle lease ----

$session_b->query("SELECT redlock_acquire_all(ARRAY['a', 'b'], scope => 'session', keep_idle => '1 min'); SELECT redlock_release_all()");
my $granted = $host_b->safe_psql('postgres', 'SELECT granted FROM redlock_stats');
$session_b->query("SELECT redlock_acquire_all(ARRAY['b', 'c', 'a'], scope => 'session', keep_idle => '1 min')");
is($host_b->safe_psql('postgres', 'SELECT granted FROM redlock_stats') - $granted, 1, 'the nodes are not asked for idle leases');
$session_b->query('SELECT redlock_release_all()');
$host_b->safe_psql('postgres', 'SELECT redlock_release_idle()');
nothing_is_left('after idle leases');

# ---- a lock is handed over while the call waits for other locks ----

$other_b->query("SELECT redlock_acquire('a', scope => 'session')");
my $third_b = session($host_b);
$third_b->query("SELECT redlock_acquire('b', scope => 'session')");
foreach my $end ('', 'cancel')
{
	$session_b->send("SELECT redlock_acquire_all(ARRAY['a', 'b'], scope => 'session')");
	wait_until(sub { locks($host_b) =~ /a queued/ }, 'a session waits at the first gate');
	$other_b->query("SELECT redlock_release('a')");
	wait_until(sub { locks($host_b) =~ /b queued/ }, '... then at the second');
	like(locks($host_b), qr/\ba held/, 'and keeps the first, for which it has waited');
	is($host_b->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = 'a' AND state = 'held'"), $session_b->pid, 'the session itself holds the first lock');
	if ($end eq 'cancel')
	{
		$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session_b->pid . ')');
		is($session_b->result->{state}, '57014', 'it is cancelled');
		wait_until(sub { $session_a->query("SELECT redlock_try('a', scope => 'session')") eq 't' }, 'and others can have the first lock');
		$session_a->query("SELECT redlock_release('a')");
	}
	else
	{
		$third_b->query("SELECT redlock_release('b')");
		is($session_b->result->{state}, '', 'it gets both');
		$session_b->query('SELECT redlock_release_all()');
		$third_b->query("SELECT redlock_acquire('b', scope => 'session')");
	}
	$other_b->query("SELECT redlock_acquire('a', scope => 'session')");
}
$_->query('SELECT redlock_release_all()') foreach $other_b, $third_b;
$third_b->quit;
nothing_is_left('after a hand-over');

# ---- a held lock is lost while the call waits for other locks ----

$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
$session_b->query("SET redlock.on_loss = error; SELECT redlock_acquire('a', scope => 'session', hold_at_most => '1 s')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['a', 'm'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'a lost, m waiting' }, 'the call waits for a lock while its other lock is lost');
$session_a->query("SELECT redlock_release('m')");
is($session_b->result->{state}, '40001', 'a part is not the whole');
is(locks($host_b), 'a lost', 'nothing was added to it');
$session_b->query('RESET redlock.on_loss; SELECT redlock_release_all()');
nothing_is_left('after a loss of what was held');

# ---- the table is full ----

restart_with($hosts[2], nodes => \@nodes, conf => 'redlock.max_locks = 16');
my $session_c = session($hosts[2]);
is($session_c->run("SELECT redlock_acquire_all(array_agg('n' || i), scope => 'session') FROM generate_series(1, 20) i")->{state},
	'53400', 'no room for all of them');
is($session_c->query("SELECT redlock_try_all(array_agg('n' || i), scope => 'session') FROM generate_series(1, 16) i"),
	't', 'a refused call leaves room for a smaller call');
$session_c->quit;

# ---- a broker that is replaced ----

$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'a held, m waiting' }, 'a session waits');
$host_b->safe_psql('postgres', 'SELECT pg_terminate_backend(broker_pid) FROM redlock_stats');
wait_nodes_ready($host_b, 3);
$session_a->query("SELECT redlock_release('m')");
isnt($session_b->result->{out}, '', 'and gets its locks by the next broker');
nothing_is_left('after a broker');

# ---- a part is lost ----

$session_a->query("SELECT redlock_acquire('m', scope => 'session')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['z', 'm', 'a'], scope => 'session', ttl => '1 s', wait => '5 min')");
wait_until(sub { locks($host_b) eq 'a held, m waiting' }, 'the call holds a lock, and waits for the next');
$_->pause foreach @nodes;
my $lost = $session_b->result;
is($lost->{state}, '40001', 'the one that is held is lost');
is($lost->{message}, 'the lease on redlock "a" was lost during the wait for "m"', 'which is told');
like($lost->{hint}, qr/^Call again for all locks: this call has released the locks/, 'with what to do');
$_->resume foreach @nodes;
wait_nodes_ready($host_b, 3);
nothing_is_left('after a loss');

# a lock ends by its hold_at_most while the call waits for a session of another host, or of its own
foreach my $holder ($session_a, $other_b)
{
	$holder->query("SELECT redlock_acquire('m', scope => 'session')");
	if ($holder == $other_b)
	{
		# the call passes the gate, and waits for the owner of the lease
		$other_b->query('BEGIN; SELECT pg_advisory_unlock_all()');
	}
	$lost = $session_b->run("SELECT redlock_acquire_all(ARRAY['m', 'a'], scope => 'session', hold_at_most => '300 ms', wait => '5 min')");
	is($lost->{message}, 'the lease on redlock "a" was lost during the wait for "m"', 'one is held for longer than its hold_at_most, while another is waited for');
	is($lost->{detail}, 'The hold_at_most of 300 ms has ended.', 'with the reason');
	$holder->query("SELECT redlock_release('m')");
	$other_b->query('COMMIT') if $holder == $other_b;
}
nothing_is_left('after hold_at_most');

# ---- a real deadlock: earlier locks are outside of the order ----

$session_a->query("SELECT redlock_acquire('z', scope => 'session')");
$session_b->send("SELECT redlock_acquire_all(ARRAY['c', 'z', 'b'], scope => 'session')");
wait_until(sub { locks($host_b) eq 'b held, c held, z waiting' }, 'B has some and waits for A');
my $deadlock = $session_a->run("SELECT redlock_acquire_all(ARRAY['d', 'b', 'a'], scope => 'session')");
$deadlock = $session_b->result if $deadlock->{state} eq '';
is($deadlock->{state}, '40P01', 'A waits for B: one of them is ended');
like($deadlock->{detail}, qr/waits for redlock "b"/, 'with the circle');
like($deadlock->{detail}, qr/waits for redlock "z"/, '... all of it');
$session_a->query('SELECT redlock_release_all()');
$session_b->result if $session_b->{mark};
nothing_is_left('after a deadlock');

# ---- in any order, on all hosts ----

foreach my $host (@hosts)
{
	$host->safe_psql('postgres', <<'SQL');
CREATE TABLE stop (id int);
CREATE TABLE victims (detail text);
CREATE SEQUENCE done;
CREATE SEQUENCE failed;
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
    told text;
    names text[];
BEGIN
    WHILE NOT EXISTS (SELECT FROM stop) LOOP
        SELECT array_agg(chr(97 + i)) INTO names
          FROM (SELECT i FROM generate_series(0, 7) i ORDER BY random() LIMIT 1 + 3 * random()) i;
        BEGIN
            PERFORM redlock_acquire_all(names, wait => CASE WHEN random() < 0.1 THEN '20 ms'::interval END);
            PERFORM pg_sleep(random() * 0.01);
            IF (SELECT count(*) FROM unnest(names) n WHERE redlock_check(n) > '0') = cardinality(names) THEN
                PERFORM nextval('done');
            END IF;
        EXCEPTION
            WHEN deadlock_detected THEN
                GET STACKED DIAGNOSTICS told = PG_EXCEPTION_DETAIL;
                INSERT INTO victims VALUES (told);
            WHEN lock_not_available OR query_canceled THEN
                PERFORM nextval('failed');
        END;
        COMMIT;
    END LOOP;
END $$;
SQL
}

my %count = disturb_work($commits, @hosts);
note("$count{done} times all were held, $count{failed} times given up");
foreach my $host (@hosts)
{
	is($host->safe_psql('postgres', 'SELECT count(*), max(detail) FROM victims'), '0|', $host->name . ': nobody was in a deadlock');
}
nothing_is_left('after all');

# ---- calls for several locks leave room in the server's lock table ----

{
	my $small = redlock_cluster('small', nodes => \@nodes, conf => "max_locks_per_transaction = 10\nredlock.max_locks = 200");
	my $holder = session($small);
	my @sessions = map { session($small) } 1 .. 8;
	my $failed;

	$holder->query("SELECT redlock_acquire('zzz', scope => 'session')");
	foreach my $i (0 .. $#sessions)
	{
		$sessions[$i]->send("SELECT redlock_acquire_all(ARRAY(SELECT 'g$i ' || i FROM generate_series(1, 63) i) || 'zzz'::text, scope => 'session')");
		wait_until(sub { $sessions[$i]->done || $small->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') > $i }, 'it waits, or fails')
		  or last;
		$failed = $sessions[$i] if $sessions[$i]->done;
		last if $failed;
	}
	isnt($failed, undef, 'not all can wait');
	my $result = $failed->result;
	is($result->{state}, '53400', 'of many calls for several');
	like($result->{hint}, qr/max_locks_per_transaction/, 'and learn what to change');
	is($small->safe_psql('postgres', 'CREATE TABLE made AS SELECT 1; SELECT count(*) FROM pg_class') > 0, 1, 'others have room for their locks');
	$small->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT redlock_acquire_all(ARRAY%' AND state = 'active' AND pid <> pg_backend_pid()");
	wait_until(sub { $small->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") <= 2 }, 'they leave their places');
	$holder->query('SELECT redlock_release_all()');
	is($failed->run("SELECT array_length(redlock_acquire_all(ARRAY(SELECT 'h' || i FROM generate_series(1, 64) i), scope => 'session'), 1)")->{out}, 64, 'which others get');
	$_->quit foreach $holder, $failed;
	$small->stop;
}

done_testing();

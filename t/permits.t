# Locks with permits: at most n holders across all hosts, each with a permit of its own.
#
# Protects from: one holder too many, also while sessions are cancelled and terminated and a node
# is gone; a permit staying free while a session waits; a latecomer overtaking a waiter; a queue
# blocked by a dead waiter; a lock's key refusing other callers after the end of all permits;
# callers with different numbers of permits, and no error.
#
# COMMITS in the environment is the number of transactions of the load.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $commits = $ENV{COMMITS} // 400;
my @nodes   = redis_nodes(3);
my $conf    = "redlock.ttl = '3s'\nmax_connections = 40";
my @hosts   = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);
my ($host_a, $host_b, $host_c) = @hosts;
my ($on_a, $also_a, $on_b, $also_b, $on_c) = map { session($_) } $host_a, $host_a, $host_b, $host_b, $host_c;
my @sessions = ($on_a, $also_a, $on_b, $also_b, $on_c);

sub take { return "SELECT redlock_acquire('job', scope => 'session', permits => 2) > 0" }

# A host's sessions as "permit state", in order.
sub locks
{
	my ($host) = @_;
	return $host->safe_psql('postgres',
		"SELECT coalesce(string_agg(concat_ws(' ', permit, state), ', ' ORDER BY permit, state), '') FROM redlock_locks
		  WHERE resource = 'job' AND state <> 'releasing'");
}

sub nothing_is_left
{
	my ($after) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$_->query('SELECT redlock_release_all()') foreach @sessions;
	wait_until(sub { !grep { locks($_) ne '' } @hosts }, "$after: nothing is left");
	wait_until(sub { !grep { $_->cli('KEYS', 'redlock:job*') =~ /job(?!.*token)/ } @nodes }, "$after: at no node");
}

# ---- a lock with two permits ----

is($on_a->query(take()), 't', 'the first has a permit');
is($on_b->query(take()), 't', 'the second, of another host, too');
is(join(' ', sort map { locks($_) } $host_a, $host_b), '1 held 2 held', 'each its own');
is($on_c->query("SELECT redlock_try('job', permits => 2)"), 'f', 'a third finds none');
is($also_a->query("SELECT redlock_try('job', permits => 2)"), 'f', 'nor one of the same host');
like($on_c->run("SELECT redlock_acquire('job', '100 ms', permits => 2)")->{err}, qr/could not acquire redlock "job" within 100 ms \(wait\)/,
	'the third session waits in vain');
like($on_c->run("SELECT redlock_try('job')")->{err}, qr/redlock "job" is requested without permits, but held or requested with 2 permits/,
	'who says nothing of permits is told');
like($on_c->run("SELECT redlock_try('job', mode => 'shared')")->{err}, qr/redlock "job" is requested without permits, but held or requested with 2 permits/,
	'a reader gets the same error');
is($on_a->query(take()), 't', 'a holder of a permit acquires the permit again');
is($on_a->query("SELECT redlock_release('job') AND redlock_check('job') > '0'"), 't', 'until it is released as often');
isnt($on_a->query("SELECT redlock_token('job')"), $on_b->query("SELECT redlock_token('job')"), 'each has its own token');

# ---- each host's release wakes waiters, in the order of their arrival ----

$on_c->send(take());
wait_until(sub { locks($host_c) eq 'waiting' }, 'a third waits');
$also_b->send(take());
wait_until(sub { locks($host_b) =~ /waiting/ }, 'and a fourth');
is($also_a->query("SELECT redlock_try('job', permits => 2)"), 'f', 'a fifth tries in vain');
$on_b->query("SELECT redlock_release('job')");
is($on_c->result->{out}, 't', 'the third has the permit of the second');
ok(!$also_b->done, 'the fourth waits on');
$on_a->query("SELECT redlock_release('job')");
is($also_b->result->{out}, 't', 'and has that of the first');
nothing_is_left('after waits');

# ---- a shared lock has no permits, except for a session of another host ----

$on_a->query("SELECT redlock_acquire('job', scope => 'session', mode => 'shared')");
$on_b->run("SELECT redlock_try('job', scope => 'session', permits => 2)"); # maybe the second permit
like($also_b->run("SELECT redlock_try('job', permits => 2)")->{err}, qr/redlock "job" is requested with 2 permits, but held or requested without permits/,
	'who asks for a permit of a lock that is shared is told');
nothing_is_left('after a lock was shared');

# ---- a call with another number of permits is refused, whichever permits are held ----

{
	my %call = (
		'without permits' => "SELECT redlock_acquire('job', '1 min', scope => 'session') > 0",
		'with 2 permits'  => "SELECT redlock_acquire('job', '1 min', scope => 'session', permits => 2) > 0",
		'with 4 permits'  => "SELECT redlock_acquire('job', '1 min', scope => 'session', permits => 4) > 0",
		'a shared lock' => "SELECT redlock_acquire('job', '1 min', scope => 'session', mode => 'shared') > 0");
	my @holders = map { session($host_a) } 1 .. 4;

	foreach my $kept (0 .. 3)
	{
		# three of four holders release; each of the four is left once
		$_->query($call{'with 4 permits'}) foreach @holders;
		my @left = grep { $_ != $holders[$kept] } @holders;
		$_->query("SELECT redlock_release('job')") foreach @left;
		my $permit = locks($host_a);
		foreach my $other (grep { $_ ne 'with 4 permits' } sort keys %call)
		{
			is($also_a->run($call{$other})->{state}, '55000', "$permit: $other on the same server");
			is($on_b->run($call{$other})->{state}, '55000', "$permit: $other on another server");
		}
		is($on_b->query("SELECT redlock_try('job', scope => 'session', permits => 4) AND redlock_release('job')"), 't', "$permit: the same number is granted");
		$holders[$kept]->query("SELECT redlock_release('job')");
		nothing_is_left("after $permit");
	}
	foreach my $plain (grep { $_ ne 'with 4 permits' } sort keys %call)
	{
		$holders[0]->query($call{$plain});
		is($also_a->run($call{'with 4 permits'})->{state}, '55000', "$plain: permits on the same server");
		is($on_b->run($call{'with 4 permits'})->{state}, '55000', "$plain: permits on another server");
		$holders[0]->query("SELECT redlock_release('job')");
		nothing_is_left("after $plain");
	}

	# another number is refused beside a waiter of the same server, too
	$_->query($call{'with 4 permits'}) foreach @holders;
	$on_b->send($call{'with 4 permits'});
	wait_until(sub { locks($host_b) =~ /waiting/ }, 'a waiter on a server without a holder');
	is($also_b->run("SELECT redlock_try('job', permits => 5)")->{state}, '55000', 'a try with another number beside the waiter');
	is($also_b->run("SELECT redlock_acquire('job', wait => '0', permits => 3)")->{state}, '55000', 'an acquire with another number beside the waiter');
	$_->query("SELECT redlock_release('job')") foreach @holders;
	is($on_b->result->{out}, 't', 'the waiter gets a permit');
	$on_b->query("SELECT redlock_release('job')");
	nothing_is_left('after a waiter beside other numbers');

	# a plain client of the nodes has the lock: no permit is free
	$_->cli('SET', 'redlock:job', 'a plain client', 'NX', 'PX', 600000) foreach @nodes;
	is($on_a->query("SELECT redlock_try('job', permits => 4)"), 'f', 'a plain client keeps out who wants a permit');
	$on_a->send("SELECT redlock_try('job', permits => 4, wait => '10 min')");
	wait_until(sub { locks($host_a) =~ /waiting/ }, 'a waiter for a permit');
	$_->cli('DEL', 'redlock:job') foreach @nodes;
	is($on_a->result->{out}, 't', 'gets it when the plain client has gone');
	$holders[2]->query($call{'with 4 permits'});
	is(scalar(grep { $_->cli('SET', 'redlock:job', 'a plain client', 'NX', 'PX', 60000) eq 'OK' } @nodes), 0, 'and a holder of a permit keeps out a plain client');
	$_->quit foreach @holders;
	nothing_is_left('after a plain client');
}

# renewals and hold_at_least extend the key of the lock, too
$on_a->query("SELECT redlock_acquire('job', scope => 'session', permits => 4, ttl => '600 ms')");
my $renewed = $on_a->query('SELECT renewed FROM redlock_stats');
wait_until(sub { $on_a->query('SELECT renewed FROM redlock_stats') > $renewed + 6 }, 'a permit is renewed');
is($on_b->run("SELECT redlock_try('job')")->{state}, '55000', 'and keeps out who says nothing of permits');
$on_a->query("SELECT redlock_release('job')");
nothing_is_left('after renewals');
$on_a->query("SELECT redlock_acquire('job', scope => 'session', permits => 4, hold_at_least => '8 s'), redlock_release('job')");
is($on_b->run("SELECT redlock_try('job')")->{state}, '55000', 'a permit kept by hold_at_least also keeps out calls without permits');
my ($ends) = sort map { $_->cli('PTTL', 'redlock:job') } @nodes;
cmp_ok($ends, '>', 3000, 'for as long as it is kept');
$_->cli('DEL', 'redlock:job', map { "redlock:job\x01$_" } 1 .. 4) foreach @nodes;

# the release of the longest permit shortens the life of the lock's key
{
	my $of_4 = "scope => 'session', permits => 4";
	$on_a->query("SELECT redlock_acquire('job', $of_4, ttl => '50 s')");
	$on_b->query("SELECT redlock_acquire('job', $of_4, ttl => '5 s')");
	my ($long, $short) = map { locks($_) =~ /^(\d) held$/ ? "redlock:job\x01$1" : '' } $host_a, $host_b;
	wait_until(sub { 3 == grep { $_->cli('EXISTS', $long, $short) == 2 } @nodes }, 'all nodes have both permits');
	wait_until(sub { 3 == grep { $_->cli('PTTL', 'redlock:job') > 5000 } @nodes }, "the lock's key lives as long as the longer permit");
	$on_a->query("SELECT redlock_release('job')");
	wait_until(sub { !grep { $_->cli('EXISTS', $long) } @nodes }, 'the longer permit is released at all nodes');
	is(join(' ', grep { $_ > 5000 } map { $_->cli('PTTL', 'redlock:job') } @nodes), '', "the lock's key lives no longer than the shorter permit");
	nothing_is_left('after permits of different lives');
}

# ---- a latecomer does not overtake a waiter ----

$_->query(take()) foreach $on_a, $also_a;

# ---- one node has a key with another number of permits, left by a dead host ----

{
	my $copy = q{redis.call('RESTORE', KEYS[2], 60000, redis.call('DUMP', KEYS[1]), 'REPLACE')};

	$on_a->query("SELECT redlock_acquire('left', scope => 'session', permits => 3)");
	$nodes[2]->cli('EVAL', $copy, 2, 'redlock:left', 'redlock:other');
	$on_a->query("SELECT redlock_release('left')");
	wait_until(sub { key_count('redlock:left', @nodes) == 0 }, 'the lock with permits is free');
	$nodes[2]->cli('EVAL', $copy, 2, 'redlock:other', 'redlock:left');
	ok($on_b->query("SELECT redlock_acquire('left', scope => 'session') > 0") eq 't', 'the other nodes grant the lock without permits');
	is($on_c->run("SELECT redlock_try('left')")->{out}, 'f', 'one node does not decide about the number: a try');
	is($on_c->run("SELECT redlock_acquire('left', '1 s')")->{state}, '55P03', 'a wait');
	$on_b->query("SELECT redlock_release('left')");
	$nodes[2]->cli('DEL', 'redlock:left', 'redlock:other');
}

# ---- another number of permits, on the same server ----

{
	my $third_a = session($host_a);
	foreach my $other (
		"SELECT redlock_try('job')",
		"SELECT redlock_acquire('job', '1 min')",
		"SELECT redlock_try('job', mode => 'shared')",
		"SELECT redlock_try_all(ARRAY['job'])",
		"CALL redlock_run('job', 'SELECT 1')",
		"SELECT redlock_acquire('job', '1 min', permits => 3)",
		"SELECT redlock_try('job', permits => 3)")
	{
		like($third_a->run($other)->{err}, qr/redlock "job" is requested with(out| 3) permits, but held or requested with 2 permits/, "$other is told");
	}
	$third_a->quit;
}

$on_b->send(take());
wait_until(sub { locks($host_b) eq 'waiting' }, 'a session waits');
is($host_b->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'job' AND num_nonnulls(until, valid_for, held_by) > 0"),
	'0', 'its place in the queue is no lock');
replace_broker($host_b); # a new broker receives no messages for a while
$on_a->query("SELECT redlock_release('job')");
is($on_c->query("SELECT redlock_try('job', permits => 2)"), 'f', 'a permit that is free is not for others than who waits');
is($on_b->result->{out}, 't', 'but for that');
nothing_is_left('after a free permit was left to who waits');

# ---- on one server permits go to local waiters without the nodes ----

sub tokens
{
	return map { split /\|/ } split /\n/,
	  $host_a->safe_psql('postgres', "SELECT permit, token FROM redlock_locks WHERE resource = 'job' AND state = 'held'");
}
sub counted { my ($what) = @_; return $host_a->safe_psql('postgres', "SELECT $what FROM redlock_stats") }

{
	my @waiting = map { session($host_a) } 1 .. 2;
	foreach my $how ("SELECT redlock_release('job')", 'COMMIT')
	{
		my ($scope, $begin) = $how eq 'COMMIT' ? ('transaction', 'BEGIN; ') : ('session', '');
		my ($passed, $ordered) = (0, 0);
		foreach (1 .. 10)
		{
			$_->query("${begin}SELECT redlock_acquire('job', scope => '$scope', permits => 2, ttl => '60 s')") foreach $on_a, $also_a;
			my %before = tokens();
			foreach my $n (0, 1)
			{
				$waiting[$n]->send("SELECT redlock_acquire('job', scope => 'session', permits => 2, ttl => '60 s')");
				wait_until(sub { locks($host_a) =~ ($n ? qr/queued/ : qr/waiting/) }, 'a session waits');
			}
			my $before = counted('granted');
			$_->send($how) foreach $on_a, $also_a;
			$_->result foreach $on_a, $also_a;
			$_->result foreach @waiting;
			my %after = tokens();
			$ordered += grep { $after{$_} > $before{$_} } keys %before;
			$passed += 2 + $before - counted('granted');
			$_->query('SELECT redlock_release_all()') foreach @waiting;
		}
		is($ordered, 20, "$how: the next holder of each permit has a larger token");
		cmp_ok($passed, '>', 0, "$how: the nodes are not asked, $passed of 20 times");
		nothing_is_left("after $how");
	}
	is(counted('taken_idle'), 0, 'that is not idle by keep_idle');

	my $take = "SELECT redlock_acquire('job', scope => 'session', permits => 2, ttl => '60 s') > 0";
	my %passed;
	foreach my $limit (0, 1000)
	{
		$host_a->append_conf('postgresql.conf', "redlock.handover_limit = $limit");
		$host_a->reload;
		wait_until(sub { $on_a->query('SHOW redlock.handover_limit') eq $limit }, "handover_limit $limit");
		my $before = counted('handed_over');
		foreach (1 .. 10)
		{
			$_->query($take) foreach $on_a, $also_a;
			$waiting[0]->send($take);
			wait_until(sub { locks($host_a) =~ /waiting/ }, 'a session waits');
			$on_a->query("SELECT redlock_release('job')");
			is($waiting[0]->result->{out}, 't', 'the waiter has the permit');
			$_->query('SELECT redlock_release_all()') foreach $waiting[0], $also_a;
		}
		$passed{$limit} = counted('handed_over') - $before;
	}
	is($passed{0}, 0, 'handover_limit 0: none is passed on');
	cmp_ok($passed{1000}, '>', 0, "else $passed{1000} of 10 are");
	nothing_is_left('after permits of the nodes');
	$_->quit foreach @waiting;
}

# ---- a waiter that leaves makes room for the next waiter ----

$_->query(take()) foreach $on_a, $also_a;
$on_b->send(take());
wait_until(sub { locks($host_b) eq 'waiting' }, 'the first waits');
$on_c->send(take());
wait_until(sub { locks($host_c) eq 'waiting' }, 'a second session waits for a permit');
$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $on_b->pid . ')');
like($on_b->result->{err}, qr/canceling statement/, 'the first is cancelled');
$on_a->query("SELECT redlock_release('job')");
is($on_c->result->{out}, 't', 'the next has the permit');
nothing_is_left('after a cancel');

$_->query(take()) foreach $on_a, $also_a;
my $killed = session($host_b);
$killed->send(take());
wait_until(sub { locks($host_b) eq 'waiting' }, 'one waits again');
$on_c->send(take());
wait_until(sub { locks($host_c) eq 'waiting' }, 'a second session waits behind the terminated session');
$host_b->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $killed->pid . ')');
wait_until(sub { locks($host_b) eq '' }, 'the first is terminated');
$on_a->query("SELECT redlock_release('job')");
is($on_c->result->{out}, 't', 'the next has the permit');
$killed->vanish;
nothing_is_left('after a termination');

# ---- a waiter outlasts silent nodes ----

$_->query(take()) foreach $on_a, $also_a;
$on_b->send(take());
wait_until(sub { locks($host_b) eq 'waiting' }, 'a session waits, without an end');
$_->pause foreach @nodes[ 0, 1 ];
$on_c->send("SELECT redlock_acquire('job', '50 s', scope => 'session', permits => 2) > 0");
wait_until(sub { $host_c->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'job'") ne '0' },
	'another begins while no quorum answers');
$_->resume foreach @nodes[ 0, 1 ];
wait_nodes_ready($_, 3) foreach @hosts;
$_->query("SELECT redlock_release('job')") foreach $on_a, $also_a;
is($on_c->result->{out}, 't', 'a permit is granted after the outage');
is($on_b->result->{out}, 't', 'the earlier waiter gets a permit, too');
nothing_is_left('after an outage');

sub hears
{
	return join ' ', map { $_->cli('PUBSUB', 'NUMSUB', "redlock:job\x01") =~ /(\d+)\s*$/ ? $1 : '' } @nodes;
}
$_->query(take()) foreach $on_a, $also_a;
$on_b->send(take());
wait_until(sub { hears() eq '1 1 1' }, 'who waits for a permit hears of releases');
replace_broker($host_b);
wait_until(sub { hears() eq '0 0 0' || hears() eq '1 1 1' }, 'its broker ends');
wait_nodes_ready($host_b, 3);
wait_until(sub { hears() eq '1 1 1' }, 'by the next broker, too');
$on_a->query("SELECT redlock_release('job')");
is($on_b->result->{out}, 't', 'and has one');
nothing_is_left('after another broker');

$_->query(take()) foreach $on_a, $also_a;
$on_b->send(take());
wait_until(sub { locks($host_b) eq 'waiting' }, 'a session waits');
$on_c->send(take());
$also_b->send(take());
kill STOP => $on_b->pid;
$_->query("SELECT redlock_release('job')") foreach $on_a, $also_a;
is($on_c->result->{out}, 't', 'while the first is stopped, one of another host goes on after a while');
is($also_b->result->{out}, 't', 'and one of the same host');
kill CONT => $on_b->pid;
$on_c->query("SELECT redlock_release('job')");
is($on_b->result->{out}, 't', 'so does the first, when it is not stopped any more');
nothing_is_left('after a session was stopped');

# ---- permits of a dead host are free after the ttl ----

$_->query(take()) foreach $on_b, $also_b;
$host_b->stop('immediate');
$on_b->vanish;
$also_b->vanish;
is($on_c->query(take()), 't', 'a session gets a permit of a dead host after the ttl');
is($on_a->query(take()), 't', 'and another the other');
$host_b->start;
wait_nodes_ready($host_b, 3);
@sessions = ($on_a, $also_a, $on_b = session($host_b), $also_b = session($host_b), $on_c);
nothing_is_left('after a host died');

# ---- different numbers ----

$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
nothing_is_left("after a plain lock");
$on_a->query("SELECT redlock_acquire('job', scope => 'session', permits => 2)") ;
$also_a->query("SELECT redlock_acquire('job', scope => 'session', permits => 2)");
like($on_b->run("SELECT redlock_acquire('job', scope => 'session', permits => 3)")->{err}, qr/^$|is requested with 3 permits, but held or requested with 2 permits/,
	'who says a larger number has one more, or is told');
like($on_c->run("SELECT redlock_acquire('job', '1 s')")->{err}, qr/is requested without permits, but held or requested with 2 permits/, 'who says none is told');
like($on_a->run("SELECT redlock_acquire('job', permits => 3)")->{err}, qr/holds redlock "job" with another number of permits/,
	'a holder with another number of permits gets an error');
nothing_is_left('after different numbers');

# ---- each permit has a fence of its own ----

$_->query(take()) foreach $on_a, $on_b;
$_->query("SELECT redlock_fence('job')") foreach $on_a, $on_b;
is( join(' ', map { $_->safe_psql('postgres', q{SELECT string_agg(quote_literal(resource), ' ') FROM redlock_fences}) } $host_a, $host_b) =~ tr/'//,
	4, 'a row for each');
nothing_is_left('after fences');

# ---- jobs ----

$_->query(take()) foreach $on_a, $on_b;
like($on_c->run("CALL redlock_run('job', 'SELECT 1', permits => 2)")->{err}, qr/is held by another; skipped/, 'a run is skipped');
$on_b->query("SELECT redlock_release('job')");
is($on_c->run("CALL redlock_run('job', 'SELECT 1', wait => '10 s', permits => 2)")->{err}, '', 'or runs');
$on_c->query("CALL redlock_lock('job', permits => 2)");
is(locks($host_c) =~ /held/ ? 1 : 0, 1, 'redlock_lock takes a permit, too');
nothing_is_left('after jobs');

# ---- under load: never more than three, whatever ends ----

foreach my $host (@hosts)
{
	$host->safe_psql('postgres', <<'SQL');
CREATE TABLE held (permit int, since timestamptz, until timestamptz);
CREATE TABLE stop (stop int);
CREATE SEQUENCE done;
CREATE SEQUENCE failed;
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz;
	my_permit int;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		BEGIN
			PERFORM redlock_acquire('load', random() * interval '3 s', scope => 'session', permits => 3,
				ttl => '2 s');
			began := clock_timestamp();
			SELECT permit INTO my_permit FROM redlock_locks WHERE resource = 'load' AND state = 'held' AND pid = pg_backend_pid();
			PERFORM pg_sleep(random() * 0.02);
			PERFORM redlock_check('load');
			INSERT INTO held VALUES (my_permit, began, clock_timestamp());
			PERFORM nextval('done');
		EXCEPTION WHEN lock_not_available THEN
			PERFORM nextval('failed');
		END;
		COMMIT;
		PERFORM redlock_release_all();
		COMMIT;
	END LOOP;
END $$;
SQL
}
$nodes[0]->pause;
my %count = disturb_work($commits / 2, @hosts);
$nodes[0]->resume;
$_->safe_psql('postgres', 'DELETE FROM stop') foreach @hosts;
my %more = disturb_work($count{done} + $commits / 2, @hosts); # the first work went on until its stop
note("$more{done} times held, $more{failed} times waited in vain");
my @events;
foreach my $host (@hosts)
{
	foreach my $row (split /\n/, $host->safe_psql('postgres', "SELECT permit, extract(epoch FROM since), extract(epoch FROM until) FROM held"))
	{
		my ($permit, $since, $until) = split /\|/, $row;
		push @events, [ $since, 1, $permit ], [ $until, -1, $permit ];
	}
}
my ($now, $most, $doubly) = (0, 0, 0);
my %in;
foreach my $event (sort { $a->[0] <=> $b->[0] or $a->[1] <=> $b->[1] } @events)
{
	$now += $event->[1];
	$most = $now if $now > $most;
	$doubly++ if ($in{ $event->[2] } += $event->[1]) > 1;
}
is($most, 3, 'never more than three at a time, and three');
is($doubly, 0, 'no permit has two holders');
is(join(' ', sort keys %in), '1 2 3', 'all permits are used');
wait_until(sub { !grep { $_->safe_psql('postgres', 'SELECT count(*) FROM redlock_locks') ne '0' } @hosts }, 'nothing is left after the load');

done_testing();

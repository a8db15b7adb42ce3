# Detached locks belong to a role, and to no session.
#
# Protects from: a lease ending with a session, a statement or a broker; a lease outliving
# hold_at_most, its release, its loss or its server, also at the nodes; an end by hold_at_most
# reported as a loss; a confirmed extension that does not last; waiters of either host waiting on
# after the end, or losing their places in the queue; a role using the token of another role's lock;
# a transaction committing after the end of its detached lock.

use strict;
use warnings;

use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes,
	conf => "redlock.ttl = '60s'\nredlock.max_locks = 16\nredlock.node_timeout = '2s'");
my $other = redlock_cluster('b', nodes => \@nodes, conf => "redlock.ttl = '60s'");
$host->safe_psql('postgres', <<'SQL');
CREATE ROLE app LOGIN;
CREATE ROLE member LOGIN IN ROLE app;
CREATE ROLE stranger LOGIN;
CREATE TABLE work (what text);
GRANT ALL ON work TO PUBLIC;
SQL
my ($s, $t, $u) = map { session($host) } 1 .. 3;
my $b = session($other);

sub acquire
{
	my ($session, $name, $more) = @_;
	return $session->query("SELECT redlock_acquire('$name', scope => 'detached', hold_at_most => '10 min'" . ($more // '') . ')');
}

sub view
{
	my ($columns, $name) = @_;
	return $host->safe_psql('postgres',
		"SELECT $columns FROM redlock_locks WHERE resource = '$name' AND state NOT IN ('releasing', 'queued')");
}

sub stat_of
{
	my ($column) = @_;
	return $host->safe_psql('postgres', "SELECT $column FROM redlock_stats");
}

# The key does not expire during the wait: the ttl is a minute.
sub is_over
{
	my ($name, $why) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 }, "$name is released at the nodes: $why");
	is(view('state', $name), '', "$name is in no view: $why");
	return;
}

sub is_queued
{
	my ($name, $session, $why) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM redlock_locks WHERE resource = '$name' AND state = 'queued' AND pid = " . $session->pid) eq '1';
		},
		$why);
	return;
}

# ---- a detached lock belongs to no session ----

foreach my $end (qw(quit vanish terminate))
{
	my $v     = session($host);
	my $token = acquire($v, $end);

	$end eq 'terminate' ? $host->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $v->pid . ')') : $v->$end;
	wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $v->pid) eq '0' },
		"the session has gone: $end");
	is(view("state, scope, pid, database, token = $token, valid_for > '30 s', role = current_user, until > since + '9 min'", $end),
		'held|detached||postgres|t|t|t|t', 'its detached lease has not');
	wait_until(sub { key_count("redlock:$end", @nodes) == 3 }, 'at the nodes neither');
	is($s->query("SELECT redlock_check('$end', $token) > '30 s'"), 't', 'another session looks at it');
	is($s->query("SELECT redlock_release('$end', $token)"), 't', 'and gives it back');
	is_over($end, 'another session has released it');
	$v->quit;
}

my $token = acquire($s, 'statement');
is($s->run("SELECT redlock_acquire('failed', scope => 'detached', hold_at_most => '10 min') / 0")->{state}, '22012', 'a statement fails');
is(view('scope', 'failed'), 'detached', 'after it has detached a lease');
$s->query('DISCARD ALL');
is($s->query("SELECT redlock_release(resource, token) FROM redlock_locks WHERE resource = 'failed' AND state = 'held'"), 't', 'whose token the view tells');
is($s->query("SELECT redlock_release('statement', $token)"), 't', 'DISCARD ALL has ended none');

is(stat_of('locks'), 0, 'none is left');
is($t->query("SELECT count(redlock_acquire('n' || i, scope => 'detached', hold_at_most => '10 min')) FROM generate_series(1, 16) i"), 16, 'there may be so many');
is($s->run("SELECT redlock_try('one more')")->{state}, '53400', 'as redlock.max_locks');
is($s->query("SELECT bool_and(redlock_release(resource, token)) FROM redlock_locks WHERE state = 'held'"), 't', 'all are released');

# the limit of a role includes waiters
my $limit = "redlock.max_locks_per_session";
$_->query("SET $limit = 1") foreach $t, $u;
$b->query("SELECT redlock_acquire('limit ' || i, scope => 'session') FROM generate_series(1, 2) i");
$t->send("SELECT redlock_acquire('limit 1', scope => 'detached', hold_at_most => '10 min')");
$u->send("SELECT redlock_acquire('limit 2', scope => 'detached', hold_at_most => '10 min')");
wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'") == 2 }, 'two wait for a lock each');
$b->query('SELECT redlock_release_all()');
is(join(' ', sort map { $_->result->{state} } $t, $u), ' 53400', 'of which the role may have one');
is($s->query("SELECT count(redlock_release(resource, token)) FROM redlock_locks WHERE state = 'held'"), 1, 'and has one');
$_->query("RESET $limit") foreach $t, $u;

# ---- a detached lock belongs to a role ----

my %as = map { $_ => session($host) } qw(app member stranger);
$as{$_}->query("SET SESSION AUTHORIZATION $_") foreach keys %as;
$token = acquire($as{app}, 'theirs');
foreach my $call ("redlock_release('theirs', $token)", "redlock_check('theirs', $token)",
	"redlock_extend('theirs', $token, '20 min')", "redlock_attach('theirs', $token)")
{
	my $result = $as{stranger}->run("SELECT $call");
	is("$result->{state} $result->{detail}", '42501 The detached lock belongs to role "app".', "a stranger may not: $call");
}
is($as{stranger}->run("SELECT redlock_release('theirs', $token + 1)")->{state}, '42501', 'and does not learn whether a token is right');
foreach my $wrong ($token - 1, $token + 1, 0, -1, '9223372036854775807')
{
	is($as{app}->run("SELECT redlock_release('theirs', $wrong)")->{state}, '55000', "its own role needs the token: not $wrong");
}
is(view("token = $token AND until BETWEEN now() + '9 min' AND now() + '10 min'", 'theirs'), 't', 'nothing has changed');
is($as{member}->query("SELECT redlock_check('theirs', $token) > '30 s'"), 't', 'a member may look');
is($as{member}->query("SELECT redlock_release('theirs', $token)"), 't', 'and release it');
$token = acquire($as{member}, 'theirs');
is($as{app}->run("SELECT redlock_release('theirs', $token)")->{state}, '42501', 'but a role is no member of its members');
is($s->query("SELECT redlock_release('theirs', $token)"), 't', 'a superuser may all');
$token = acquire($as{stranger}, 'of nobody');
$as{stranger}->quit;
$host->safe_psql('postgres', 'DROP ROLE stranger');
like(view('role', 'of nobody'), qr/^unknown \(OID=\d+\)$/, 'a role that was dropped leaves its lease');
is($as{app}->run("SELECT redlock_release('of nobody', $token)")->{state}, '42501', 'which is nobody else\'s');
is($s->query("SELECT redlock_release('of nobody', $token)"), 't', 'but a superuser\'s');

# ---- the end of a detached lock ----

my $lost = stat_of('lost');
$token = acquire($s, 'short', ", ttl => '50 s'");
$s->query("SELECT redlock_release('short', $token)");
$token = $s->query("SELECT redlock_acquire('short', scope => 'detached', hold_at_most => '300 ms')");
is_over('short', 'hold_at_most is over');
is($s->run("SELECT redlock_check('short', $token)")->{state}, '55000', 'nobody has it any more');
my $renewed = stat_of('renewed');
$token = $s->query("SELECT redlock_acquire('long', ttl => '600 ms', scope => 'detached', hold_at_most => '3 s')");
wait_until(sub { stat_of("renewed >= $renewed + 5") eq 't' }, 'it is renewed');
is_over('long', 'hold_at_most is over, after renewals');
is(stat_of('lost'), $lost, 'none of these was lost');

# the validity ends at hold_at_most, so a later extension must not be confirmed
foreach my $round (1 .. 20)
{
	$token = $s->query("SELECT redlock_acquire('extended', scope => 'detached', hold_at_most => '500 ms')");
	$s->query("SELECT pg_sleep(random() * 0.45)") if $round > 1;
	my $extended = $s->run("SELECT redlock_extend('extended', $token, '10 min') > now() + '9 min' AND redlock_check('extended', $token) > '30 s'");
	if ($extended->{err} =~ /has just ended|no detached redlock/)
	{
		pass('it had ended before');
		next;
	}
	is($extended->{out}, 't', 'a lease that is extended is renewed before the call returns') or last;
	is($s->query("SELECT redlock_release('extended', $token)"), 't', 'and can be released');
}
$token = acquire($s, 'extended');
is($s->query("SELECT redlock_extend('extended', $token, '1 s') > now() + '9 min'"), 't', 'a short extension does not shorten hold_at_most');
is($s->query("SELECT redlock_release('extended', $token)"), 't', 'and goes on');
is($s->run("SELECT redlock_extend('extended', $token, '1 s')")->{state}, '55000', 'what has ended is not extended');

$token = acquire($s, 'at least', ", hold_at_least => '5 min'");
is($s->query("SELECT redlock_release('at least', $token)"), 't', 'one with hold_at_least is released');
wait_until(sub { stat_of('releasing') eq '0' }, 'and has no entry any more');
wait_until(sub { key_count('redlock:at least', @nodes) == 3 }, 'but is kept at the nodes');
is($t->query("SELECT redlock_try('at least')"), 'f', 'for nobody');

# ---- waiters ----

$token = acquire($s, 'wanted');
is($t->run("SELECT redlock_acquire('wanted', wait => '100 ms')")->{state}, '55P03', 'a wait ends');
is($t->query("SELECT redlock_try('wanted')"), 'f', 'and a try is in vain');
$t->send("SELECT redlock_acquire('wanted', scope => 'session') > $token");
is_queued('wanted', $t, 'a session of this host waits');
$u->send("SELECT redlock_acquire('wanted', scope => 'session') > $token");
is_queued('wanted', $u, 'a second session queues behind the first');
is($host->safe_psql('postgres', 'SELECT pg_blocking_pids(' . $u->pid . ')'), '{' . $t->pid . '}', 'in the order of arrival');
$b->send("SELECT redlock_acquire('wanted', scope => 'session') > $token");
wait_until(sub { $other->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'wanted'") eq 'waiting' }, 'one of another host waits');
is($s->query("SELECT redlock_release('wanted', $token)"), 't', 'it is released');
my @waiting = ($t, $u, $b);
while (@waiting)
{
	my ($next) = grep { $_->done } @waiting;
	next unless $next;
	is($next->result->{out}, 't', 'a waiter gets the released lock');
	is($next->query("SELECT redlock_release('wanted')"), 't', 'and gives it back');
	@waiting = grep { $_ != $next } @waiting;
}
is(view('state', 'wanted'), '', 'no session has the lock in the end');

# Time is the subject: without a wake-up, a waiter polls only once a second.
my $began = time;
foreach my $round (1 .. 20)
{
	$token = acquire($s, 'woken');
	$t->send("SELECT redlock_acquire('woken', scope => 'session') > $token");
	is_queued('woken', $t, 'a session waits');
	$s->query("SELECT redlock_release('woken', $token)");
	is($t->result->{out}, 't', 'and has it after the release');
	$t->query("SELECT redlock_release('woken')");
}
cmp_ok(time - $began, '<', 9, 'the release wakes it');
# The release wakes all readers, also a reader that waits for a second lock.  The time counts from
# the release, soon after the readers' poll.
my $woken = 0;
foreach my $round (1 .. 24)
{
	$token = acquire($s, 'woken');
	$t->send("SELECT (redlock_acquire_all(ARRAY['woken', 'woken, too'], scope => 'session', mode => 'shared'))[1] > $token");
	$u->send("SELECT redlock_acquire('woken', scope => 'session', mode => 'shared') > $token");
	wait_until(sub { $s->query("SELECT count(DISTINCT pid) FROM redlock_locks WHERE resource = 'woken' AND state = 'queued'") eq '2' },
		'two readers wait');
	$began = time;
	$s->query("SELECT redlock_release('woken', $token)");
	is($_->result->{out}, 't', 'and get it after the release') foreach $t, $u;
	$woken += time - $began;
	$_->query('SELECT redlock_release_all()') foreach $t, $u;
}
cmp_ok($woken, '<', 6, 'the release wakes all of them');
$token = $s->query("SELECT redlock_acquire('woken', scope => 'detached', hold_at_most => '1 s')");
$t->send("SELECT redlock_acquire('woken', scope => 'session') > $token");
is($t->result->{out}, 't', 'the end of hold_at_most wakes a waiter');
$t->query("SELECT redlock_release('woken')");

# a cancelled waiter leaves its place in the queue
$token = acquire($s, 'left');
$t->send("SELECT redlock_acquire('left')");
is_queued('left', $t, 'the first in the queue');
$u->send("SELECT redlock_acquire_all(ARRAY['0', 'left', 'right'], scope => 'session')");
is_queued('left', $u, 'and the second, who wants others, too');
$host->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $t->pid . ')');
is($t->result->{state}, '57014', 'the first is cancelled');
wait_until(sub { view('state', '0') eq 'held' }, 'the second has the lock that is before it');
is(view('state', 'right'), '', 'the second does not hold the lock behind the queued lock');
is($t->query("SELECT redlock_try('right')"), 't', 'another session gets the lock behind the queued lock');
is($s->query("SELECT redlock_release('left', $token)"), 't', 'it is released');
is($u->result->{state}, '', 'the second has all');
is($u->query('SELECT redlock_release_all()'), 3, 'three');
is(stat_of('locks'), 0, 'nothing is left');

# ---- transactions attached to a detached lock ----

sub attached
{
	my ($session, $name, $token) = @_;

	$session->query("BEGIN; SELECT redlock_attach('$name', $token); INSERT INTO work VALUES ('$name')");
	return;
}

$token = acquire($s, 'relied on');
attached($t, 'relied on', $token);
is($s->query("SELECT redlock_release('relied on', $token)"), 't', 'another session releases what a transaction relies on');
my $result = $t->run("SELECT redlock_check('relied on')");
is($result->{state}, '40001', 'the attached session finds the lease lost');
$t->query('ROLLBACK');
$token = acquire($s, 'relied on');
attached($t, 'relied on', $token);
is($s->query("SELECT redlock_release('relied on', $token)"), 't', 'again');
my $next = acquire($s, 'relied on');
$result = $t->run('COMMIT');
is($result->{state}, '40001', 'the transaction does not commit, though the lock is detached again');
like($result->{message}, qr/the lease on redlock "relied on" was lost before the commit/, 'which is told');
like($result->{detail}, qr/^The lock was released by its token, its hold_at_most ended, or /, 'with its reason');
is($s->query('SELECT count(*) FROM work'), 0, 'nothing was done');
attached($t, 'relied on', $next);
$t->query('COMMIT');
is($s->query("SELECT count(*) FROM work"), 1, 'a transaction attached to the new lease commits');
is($s->query("SELECT redlock_release('relied on', $next)"), 't', 'and leaves it');

$token = $s->query("SELECT redlock_acquire('ends', scope => 'detached', hold_at_most => '1 s')");
attached($t, 'ends', $token);
$result = $t->run('SELECT pg_sleep(60)');
is($result->{state}, '57014', 'a statement is cancelled when hold_at_most ends');
is($result->{message}, 'canceling statement because the lease on redlock "ends" was lost', 'as by the loss of its own');
$t->query('ROLLBACK');
$token = acquire($s, 'forced');
attached($t, 'forced', $token);
$t->send('SELECT pg_sleep(40)'); # less than the ttl
$s->query("SELECT redlock_force_release('forced')");
$result = $t->result;
is("$result->{state} $result->{message}", '57014 canceling statement because the lease on redlock "forced" was lost',
	'a statement is cancelled soon after a forced release');
$t->query('ROLLBACK');

$token = $s->query("SELECT redlock_acquire('goes on', scope => 'detached', hold_at_most => '2 s', ttl => '1500 ms')");
attached($t, 'goes on', $token);
$t->send('SELECT pg_sleep(4)');
is($s->query("SELECT redlock_extend('goes on', $token, '10 min') > now()"), 't', 'the statement of a transaction whose detached lease was extended');
is($t->result->{state}, '', 'is not cancelled');
is($t->run('COMMIT')->{state}, '', 'and commits');
is($s->query("SELECT redlock_release('goes on', $token)"), 't', 'it is released');

# ---- the nodes ----

# with a ttl of three times redlock.node_timeout, the second renewal knows the silent nodes
$s->query("SET redlock.ttl = '6 s'");
$token = acquire($s, 'lost');
attached($t, 'lost', $token);
$_->pause foreach @nodes[ 0, 1 ];
wait_until(sub { view('state', 'lost') eq '' }, 'without nodes the lease is over, without a release');
cmp_ok(stat_of("lost - $lost"), '>', 0, 'and counted as lost');
$result = $t->run('COMMIT');
is($result->{state}, '40001', 'a transaction attached to the lost lock does not commit');
like($result->{detail}, qr/^No quorum of nodes renewed the lease in time: .*@{[ $nodes[0]->address ]}/, 'and learns why');
is($s->run("SELECT redlock_release('lost', $token)")->{state}, '55000', 'there is nothing to release');
$_->resume foreach @nodes[ 0, 1 ];
wait_nodes_ready($host, 3);
wait_nodes_ready($other, 3);
wait_until(sub { key_count('redlock:lost', @nodes) == 0 }, 'the lost lock is released at the nodes when the nodes are back');
$s->query("RESET redlock.ttl");

# ---- the broker ----

$token = $s->query("SELECT redlock_acquire('kept', scope => 'detached', hold_at_most => '10 min', ttl => '10 s')");
my $ends = $s->query("SELECT redlock_acquire('ends', scope => 'detached', hold_at_most => '2 s', ttl => '10 s')");
my $broker = broker_pid($host);
kill 'TERM', $broker;
wait_until(sub { my $pid = broker_pid($host); $pid ne '' && $pid ne $broker }, 'there is a new broker');
is($s->query("SELECT redlock_check('kept', $token) > '0'"), 't', 'which keeps a detached lease');
$renewed = stat_of('renewed');
wait_until(sub { stat_of("renewed > $renewed") eq 't' }, 'renews it');
wait_until(sub { key_count('redlock:ends', @nodes) == 0 && view('state', 'ends') eq '' }, 'and ends another');
is($t->query("SELECT redlock_extend('kept', $token, '20 min') > now() + '19 min', redlock_release('kept', $token)"), 't|t', 'it can be extended and released');

# ---- the server ----

$token = acquire($s, 'stopped');
acquire($as{app}, 'stopped too');
$_->quit foreach $s, $t, $u, values %as;
$host->stop('fast');
is(key_count('redlock:stopped', @nodes) + key_count('redlock:stopped too', @nodes), 0, 'a server that stops releases detached locks');
$host->start;
wait_nodes_ready($host, 3);
is(psql_result($host, "SELECT redlock_check('stopped', $token)")->{state}, '55000', 'and knows nothing of it afterwards');
is($b->query("SELECT redlock_try('stopped')"), 't', 'another host gets the lock of the stopped server');
$b->quit;
done_testing();

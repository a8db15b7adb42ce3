# Idle leases: keep_idle.
#
# Protects from: a lease kept unasked, for other terms, or without limit; a token given out twice,
# or not growing; load on the broker or the nodes for each take and release of an idle lease; an
# idle lease outliving keep_idle, a reload, the shutdown, redlock_release_idle, or a session ending
# without its own release; an error about too many locks because of locks without a holder; a
# reported loss of a lock without a holder; a new broker forgetting an idle lease or its end.

use strict;
use warnings;

use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes,
	conf => "redlock.ttl = '60s'\nredlock.max_locks = 16\nredlock.node_timeout = '2s'");
my $other = redlock_cluster('b', nodes => \@nodes, conf => "redlock.ttl = '60s'");
my ($s, $t) = (session($host), session($host));
my $b = session($other);

sub stat_of
{
	my ($column) = @_;
	return $host->safe_psql('postgres', "SELECT $column FROM redlock_stats");
}

sub state_of
{
	my ($name) = @_;
	return $host->safe_psql('postgres',
		"SELECT state, scope, pid, database, token, valid_for > '0', since <= now() FROM redlock_locks WHERE resource = '$name'");
}

my $idle = 'idle|||||t|t';

sub pair
{
	my ($session, $name, $how) = @_;
	my $token = $session->query("SELECT redlock_acquire('$name', scope => 'session', $how)");

	is($session->query("SELECT redlock_release('$name')"), 't', "$name is released");
	return $token;
}

sub is_given_up
{
	my ($name, $why) = @_;
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 }, "$name is given up: $why");
	wait_until(sub { state_of($name) eq '' }, "$name is in no view: $why");
	return;
}

# ---- calls with keep_idle, and calls without ----

pair($s, 'off', "ttl => '50 s'");
is_given_up('off', 'keep_idle is off');

my $token   = pair($s, 'own', "keep_idle => '1 min'");
my $granted = stat_of('granted');
is(state_of('own'), $idle, 'a lease becomes idle');
wait_until(sub { key_count('redlock:own', @nodes) == 3 }, 'at the nodes, too');
is(pair($t, 'own', "keep_idle => '1 min'"), $token + 1, 'another session takes it, with the next token');
is(stat_of("granted - $granted, taken_idle, handed_over, recalled"), '0|1|0|0', 'without the nodes');
$t->query('BEGIN');
is($t->query("SELECT redlock_try('own')"), 't', 'a try takes it');
is(state_of('own') =~ s/\|\d.*//r, 'held|transaction', 'and holds it');
is($s->query("SELECT redlock_try('own')"), 'f', 'alone');
$t->query('COMMIT');
is_given_up('own', 'its last holder had no keep_idle');

$s->query("SET redlock.keep_idle = '1 min'");
$s->query("BEGIN; SELECT redlock_acquire('set'); COMMIT");
is(state_of('set'), $idle, 'by the setting, at the end of the transaction');
$s->query("BEGIN; SELECT redlock_acquire('set'); ROLLBACK");
is(state_of('set'), $idle, 'at an abort');
$s->query("CALL redlock_run('set', 'SELECT 1')");
is(state_of('set'), $idle, 'after redlock_run');
is(stat_of("granted - $granted"), 1, 'with one grant');
$s->query("SELECT redlock_acquire('set', scope => 'session'); DISCARD ALL");
is(state_of('set'), $idle, 'at DISCARD ALL');
$s->query("SET redlock.keep_idle = '1 min'");
pair($s, 'limited', "hold_at_most => '50 s'");
is_given_up('limited', 'a lease with a limit does not become idle');

# ---- other terms ----

$token = $s->query("SELECT redlock_acquire('set', scope => 'session', ttl => '40 s')");
is(stat_of("granted - $granted"), 3, 'another ttl is asked for');
$s->query("SELECT redlock_release('set')");
cmp_ok(pair($s, 'set', "hold_at_least => '1 ms', ttl => '40 s'"), '>', $token + 1, 'limits, too');
is(stat_of("granted - $granted"), 4, 'of the nodes');
is_given_up('set', 'and it does not become idle');

# ---- the end of an idle lease ----

my $began = time;
pair($s, 'short', "keep_idle => '200 ms'");
is_given_up('short', 'its time is over');
pair($s, 'short', "keep_idle => '10 min'");
pair($s, 'short', "keep_idle => '200 ms'");
is_given_up('short', 'the time of its last holder is over');
cmp_ok(time - $began, '<', 19, 'and nobody waited for the next renewal, after 20 s');

$s->query("SET redlock.ttl = '900 ms'");
my $renewed = stat_of('renewed');
pair($s, 'long', "keep_idle => '3 s'");
wait_until(sub { stat_of("renewed >= $renewed + 5") eq 't' }, 'an idle lease is renewed');
is_given_up('long', 'its time is over, after renewals');
is(stat_of('lost'), 0, 'and it was never lost');
$s->query("SET redlock.ttl = '60 s'");

pair($s, 'wanted', "keep_idle => '1 s', ttl => '50 s'");
is($b->query("SELECT redlock_acquire('wanted', scope => 'session', wait => '30 s') > 0"), 't', 'another host has it after the idle time');
$b->query("SELECT redlock_release('wanted')");

pair($s, "all $_", "keep_idle => '10 min'") for 1 .. 3;
is($host->safe_psql('postgres', "SELECT redlock_release_idle()"), 3, 'an operator gives them up');
is_given_up("all $_", 'redlock_release_idle') for 1 .. 3;
is($host->safe_psql('postgres', "SELECT redlock_release_idle()"), 0, 'once');
$host->safe_psql('postgres', 'CREATE ROLE guest LOGIN');
is(psql_result($host, 'SET ROLE guest; SELECT redlock_release_idle()')->{state}, '42501', 'not everybody may');

pair($s, 'reload', "keep_idle => '10 min'");
$s->query("SELECT redlock_acquire('held', scope => 'session')");
$host->reload;
is_given_up('reload', 'the reload');
is($s->query("SELECT redlock_release('held')"), 't', 'what is held stays held');
is($host->safe_psql('postgres', 'SELECT redlock_release_idle()'), 1, 'and is idle then');

foreach my $end (qw(quit vanish))
{
	my $u = session($host);
	$u->query("SELECT redlock_acquire('end', scope => 'session', keep_idle => '10 min')");
	$u->$end;
	is_given_up('end', "its session did not give it back: $end");
}

# ---- idle leases and redlock.max_locks ----

pair($s, "room $_", "keep_idle => '10 min'") for 1 .. 40;
is($s->query("SELECT count(redlock_acquire('hold ' || i, scope => 'session')) FROM generate_series(1, 16) i"),
	16, 'idle leases make room');
is($host->safe_psql('postgres', "SELECT locks, max_locks FROM redlock_stats"), '16|16', 'for as many as may be');
is($t->run("SELECT redlock_try('one more')")->{state}, '53400', 'but not for more');
is($s->query("SELECT redlock_release_all()"), 16, 'they are released');
is($host->safe_psql('postgres', "SELECT locks FROM redlock_stats"), 16, 'and are idle');
is($host->safe_psql('postgres', 'SELECT redlock_release_idle()'), 16, 'all of them');

# ---- a try of another host ----

pair($s, 'tried', "keep_idle => '10 min'");
my $recalled = stat_of('recalled');
is($b->query("SELECT redlock_try('tried', scope => 'session')"), 't', 'a try of another host gets an idle lock');
is(stat_of('recalled') - $recalled, 1, 'which was given up for it');
is($s->query("SELECT redlock_try('tried')"), 'f', 'another try does not get it back from its holder');
$b->query("SELECT redlock_release('tried')");

my $held = $s->query("SELECT redlock_acquire('tried', scope => 'session', keep_idle => '10 min')");
is($b->query("SELECT redlock_try('tried')"), 'f', 'a try is refused while a session holds the lock');
is($b->query("SELECT redlock_try('tried')"), 'f', 'each time');
$b->query("SET lock_timeout = '5 ms'");
my %ends;
wait_until(
	sub {
		my $end = $b->run("SELECT redlock_try('tried')");

		# in this time the nodes have not answered yet, or the broker has not asked
		$ends{ $end->{state} || $end->{out} }++ if $end->{state} !~ /^(08006|55000)$/;
		return ($ends{f} // 0) == 5 || keys %ends > 1;
	},
	'tries end by lock_timeout');
is(join(' ', keys %ends), 'f', 'also when lock_timeout is shorter than it waits for the other host');
$b->query('RESET lock_timeout');
is($s->query("SELECT redlock_token('tried') = $held, redlock_release('tried')"), 't|t', 'which does not disturb it');
is(state_of('tried'), $idle, 'nor keep the lease from being idle, as nobody waits');
is($b->query("SELECT redlock_try('tried', scope => 'session')"), 't', 'then a try gets it');
$b->query("SELECT redlock_release('tried')");

# A lease granted without keep_idle does not become idle: a try of another host would not know.
$s->query("SELECT redlock_acquire('unannounced', scope => 'session', keep_idle => '0')");
$t->send("SELECT redlock_acquire('unannounced', scope => 'session', keep_idle => '10 min')");
wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'unannounced' AND state = 'queued'") == 1 },
	'another session waits');
$s->query("SELECT redlock_release('unannounced')");
like($t->result->{out}, qr/^\d+$/, 'and takes it over');
$t->query("SELECT redlock_release('unannounced')");
is_given_up('unannounced', 'the nodes were not told that it may become idle');

# ---- many takes ----

my $votes = "SELECT sum(votes_yes) FROM redlock_nodes";
$host->safe_psql('postgres', <<'SQL');
CREATE TABLE seen (name text, token bigint, PRIMARY KEY (name, token));
CREATE FUNCTION take(name text, times int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last bigint := 0;
    token bigint;
BEGIN
    FOR i IN 1 .. times LOOP
        token := redlock_acquire(name, scope => 'session', keep_idle => '10 min');
        IF token <= last THEN RAISE 'token %, and % before', token, last; END IF;
        last := token;
        PERFORM redlock_release(name);
    END LOOP;
END $$;
SQL
$s->query("SELECT take('busy', 10)");
my ($votes_before, $sleeps) = ($host->safe_psql('postgres', $votes), broker_sleeps($host));
$s->query("SELECT take('busy', 900)");
cmp_ok($host->safe_psql('postgres', $votes) - $votes_before, '<', 15, '900 pairs hardly ask the nodes');
cmp_ok(broker_sleeps($host) - $sleeps, '<', 90, 'and do not wake the broker each time');

# A grant has 1001 tokens; the broker has fetched more by now.
wait_until(sub { $s->query("SELECT take('busy', 10)"); $host->safe_psql('postgres', $votes) > $votes_before }, 'tokens are fetched');
$granted = stat_of('granted');
$s->query("SELECT take('busy', 5000)");
is(stat_of('granted') - $granted, 0, 'more takes than a grant has tokens for ask for no other grant');
is(state_of('busy'), $idle, 'and leave the lease idle');
is(stat_of('lost'), 0, 'that was never lost');

# a shorter keep_idle than before: the session wakes the broker once
$s->query("SELECT redlock_acquire('busy', scope => 'session', keep_idle => '10 min'), redlock_release('busy')");
$sleeps = broker_sleeps($host);
$s->query("DO \$\$ BEGIN FOR i IN 1 .. 900 LOOP PERFORM redlock_acquire('busy', scope => 'session', keep_idle => '1 min'), redlock_release('busy'); END LOOP; END \$\$");
cmp_ok(broker_sleeps($host) - $sleeps, '<', 90, 'nor for a shorter keep_idle each time');

# If the nodes or the broker are slow to give tokens, the session waits for tokens, and does not ask
# for the lock again.
my $node_timeout = sub
{
	my ($value) = @_;

	$host->append_conf('postgresql.conf', "redlock.node_timeout = '$value'");
	$host->reload;
	$host->poll_query_until('postgres', 'SHOW redlock.node_timeout', $value) or die 'no reload';
};
my $slow    = sub { $_->pause  for @nodes[ 0, 1 ] };
my $as_ever = sub { $_->resume for @nodes[ 0, 1 ]; wait_nodes_ready($host, 3) };
my $out_of_tokens = sub
{
	my ($name, $stop, $and_then) = @_;
	my $taken = stat_of('taken_idle');

	$s->query("SELECT take('$name', 200)");
	$stop->();
	$s->send("SELECT take('$name', 801)" . ($and_then ? "; $and_then" : ''));
	wait_until(sub { stat_of('taken_idle') - $taken == 1000 }, "$name: all tokens of a grant are used");
	return;
};
my $soon = 20;

$node_timeout->('1min');
$granted = stat_of('granted');
$out_of_tokens->('slow', $slow, "SELECT take('slow', 1000)");
is(state_of('slow'), $idle, 'the lease is idle');
$as_ever->();
is($s->result->{message}, '', 'the session goes on when they have come');
is(stat_of('granted') - $granted, 1, 'the session goes on by a single grant');

my $broker = broker_pid($host);
$out_of_tokens->('late', sub { kill 'STOP', $broker }, "SELECT take('late', 1000)");
is(state_of('late'), $idle, 'the lease is idle while the broker is stopped');
kill 'CONT', $broker;
is($s->result->{message}, '', 'the session goes on when it has fetched some');
is(stat_of('granted') - $granted, 2, 'by one grant, too');

# a session with too little time, or with another ttl, does not wait for tokens
$out_of_tokens->('time', $slow);
$s->result;
$s->send("SELECT redlock_acquire('time', scope => 'session', keep_idle => '10 min', wait => '100 ms')");
wait_until(sub { $s->done }, 'no tokens are waited for when the time is over', $soon);
like($s->result->{state}, qr/^(55P03|08006)$/, 'it fails as it would without an idle lease');
$as_ever->();
is_given_up('time', 'there was no time');

$out_of_tokens->('other', $slow);
$s->result;
$s->send("SELECT redlock_acquire('other', scope => 'session', keep_idle => '10 min', ttl => '50 s') > 0");
wait_until(sub { state_of('other') =~ /^waiting/m }, 'nor by who wants another ttl', $soon);
$as_ever->();
is($s->result->{out}, 't', 'the session with another ttl gets the lock from the nodes');
$s->query("SELECT redlock_release('other')");

# the wait for tokens ends with redlock.node_timeout
$node_timeout->('500ms');
$out_of_tokens->('silent', $slow, "SELECT take('silent', 1)");
wait_until(sub { state_of('silent') =~ /^waiting/m }, 'nodes that do not answer are asked anew', $soon);
is($s->result->{state}, '08006', 'and are no quorum');
$as_ever->();
is_given_up('silent', 'it had no tokens left, and none came');

# a lease without tokens does not become idle
$node_timeout->('2s');
$s->query("SELECT take('vain', 200)");
$slow->();
$s->query("SELECT take('vain', 800)");
my $unrenewed = stat_of('unrenewed');
$s->query("SELECT redlock_acquire('vain', scope => 'session', keep_idle => '10 min')");
wait_until(sub { stat_of('unrenewed') > $unrenewed }, 'more tokens are asked for in vain');
$s->query("SELECT redlock_release('vain')");
unlike(state_of('vain'), qr/^idle/, 'a lease without a token left does not become idle');
$as_ever->();
is_given_up('vain', 'it has no tokens');
is(stat_of('lost'), 0, 'and nobody has lost any of them');

# many sessions: a token goes to a single session
my @many = map { session($host) } 1 .. 4;
$_->send(<<'SQL') for @many;
DO $$
BEGIN
    FOR i IN 1 .. 600 LOOP
        INSERT INTO seen SELECT 'many ' || i % 2, redlock_acquire('many ' || i % 2, keep_idle => '10 min');
        COMMIT;
    END LOOP;
END $$
SQL
is($_->result->{message}, '', 'sessions take turns') for @many;
is($host->safe_psql('postgres', 'SELECT count(*) FROM seen'), 2400, 'each has another token');
$_->quit for @many;

# ---- the next broker; nodes fail ----

$host->safe_psql('postgres', 'SELECT redlock_release_idle()');
pair($s, 'adopted', "keep_idle => '10 min'");
pair($s, 'ending', "keep_idle => '2 s', ttl => '50 s'");
replace_broker($host);
is_given_up('ending', 'by the new broker');
is(state_of('adopted'), $idle, 'another is idle');
wait_until(sub { key_count('redlock:adopted', @nodes) == 3 }, 'at the nodes');
wait_nodes_ready($host, 3);

$s->query("SET redlock.ttl = '900 ms'");
pair($s, 'unrenewed', "keep_idle => '10 min'");
$_->pause for @nodes;
wait_until(sub { state_of('unrenewed') ne $idle }, 'an idle lease that can not be renewed ends');
$_->resume for @nodes;
wait_nodes_ready($host, 3);
is(stat_of('lost'), 0, 'and nobody has lost it');
wait_until(sub { $s->run("SELECT redlock_try('unrenewed', scope => 'session')")->{out} eq 't' }, 'it can be had again');
$s->query('SELECT redlock_release_all()');

# ---- the shutdown ----

pair($s, 'last', "keep_idle => '10 min', ttl => '60 s'");
wait_until(sub { key_count('redlock:last', @nodes) == 3 }, 'a lease is idle');
$_->quit for $s, $t;
$host->stop('fast');
is(key_count('redlock:last', @nodes), 0, 'until the server stops');
$b->quit;

done_testing();

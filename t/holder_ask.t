# redlock_ask_release: an operator on one host asks the holder on another host for the release.
#
# Protects from: a holder not learning of the ask; an ask counting for the next holder, by a
# hand-over, a new grant, a late copy of the message, or a reader joining later; an idle lease that
# stays; a reader or a permit's holder left out; a forged message doing more than an ask; an ask by
# a role without the right, or without a trace in the log.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

# the long ttl keeps renewals out of the test: every effect comes from a message
my @nodes = redis_nodes(5);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $also_a, $on_b, $also_b) = map { session($_) } $host_a, $host_a, $host_b, $host_b;
my $described = qr/^cluster="a" host="[^"]+" database="postgres" pid=\d+ user="[^"]+"$/;

sub ask
{
	my ($name) = @_;
	return $on_b->query("SELECT redlock_ask_release('$name')");
}

sub wanted
{
	my ($session, $name) = @_;
	return $session->query("SELECT redlock_release_wanted('$name')");
}

sub sees
{
	my ($session, $name, $what) = @_;
	wait_until(sub { wanted($session, $name) eq 't' }, $what);
	return;
}

sub acquire
{
	my ($session, $name, $how) = @_;
	$how = $how ? ", $how" : '';
	return $session->query("SELECT redlock_acquire('$name', scope => 'session'$how)");
}

sub release
{
	my ($name, @sessions) = @_;
	$_->query("SELECT redlock_release('$name')") foreach @sessions;
	return;
}

# Publishes a message to host a, with a NUL in place of each |.  A single node keeps messages in
# order.
my $channel = "redlock:\\0host:" . host_id($host_a);

sub forge
{
	my ($text) = @_;
	$text =~ s/\|/\\000/g;
	return $nodes[0]->cli('EVAL', "return redis.call('PUBLISH', '$channel', '$text')", 0);
}

# ---- an exclusive holder ----

acquire($on_a, 'job');
is(wanted($on_a, 'job'), 'f', 'nobody has asked the holder');
like(ask('job'), $described, 'the ask tells the holder');
sees($on_a, 'job', 'the holder learns of the ask');
like(slurp_file($host_b->logfile),
	qr/LOG:  the release of redlock "job" is asked for by role "\w+"\n.*DETAIL:  It is held by: cluster="a"/,
	'the log tells the role and the holder');
is($on_a->query("SELECT redlock_check('job') > '0'"), 't', 'the holder keeps its lock');
acquire($on_a, 'job');
is(wanted($on_a, 'job'), 't', 'also after a further acquisition of the same lock');
release('job', $on_a, $on_a);
acquire($on_a, 'job');
is(wanted($on_a, 'job'), 'f', 'a new grant is not asked for');

# an ask on the holder's own server
$on_a->query("SELECT redlock_ask_release('job')");
sees($on_a, 'job', 'a holder on the same server learns, too');

# ---- a hand-over, and copies of a message ----

my $before = $host_a->safe_psql('postgres', 'SELECT handed_over FROM redlock_stats');
$also_a->send("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'job' AND state = 'queued'") eq '1' }, 'another session waits');
release('job', $on_a);
$also_a->result;
is($host_a->safe_psql('postgres', 'SELECT handed_over FROM redlock_stats'), $before + 1, 'it gets the lock by a hand-over');
is(wanted($also_a, 'job'), 'f', 'and is not asked for');

my $number = '00000000000000aa';
acquire($on_a, 'other');
forge("ask|redlock:job|$number|");
sees($also_a, 'job', 'an ask counts');
release('job', $also_a);
acquire($also_a, 'job');
forge("ask|redlock:job|$number|");
forge("ask|redlock:job|1|");
forge("ask|redlock:job|");
forge("ask|redlock:job|$number");
forge("ask||0000000000000001|");
forge("ask|redlock:nothing|0000000000000002|");
forge('ask|redlock:other|00000000000000bb|');
sees($on_a, 'other', 'a later message has arrived');
is(wanted($also_a, 'job'), 'f', 'a late copy, and damaged messages, count for nobody');
release('job', $also_a);
release('other', $on_a);

# ---- idle leases ----

acquire($on_a, 'idle', "keep_idle => '10 min'");
release('idle', $on_a);
is($host_a->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'idle'"), 'idle', 'an idle lease');
like(ask('idle'), $described, 'is asked for');
wait_until(sub { key_count('redlock:idle', @nodes) == 0 }, 'and is released');

# ---- readers, permits, detached locks ----

acquire($_, 'doc', "mode => 'shared'") foreach $on_a, $also_b;
like(ask('doc'), qr/cluster="[ab]"/, 'a shared lock');
sees($_, 'doc', 'each reader learns') foreach $on_a, $also_b;
acquire($also_a, 'doc', "mode => 'shared'");
is(wanted($also_a, 'doc'), 'f', 'a reader that joined later is not asked for');
ask('doc');
sees($also_a, 'doc', 'but by the next ask');
release('doc', $on_a, $also_a, $also_b);

acquire($_, 'pool', "permits => 3") foreach $on_a, $also_a, $also_b;
like(ask('pool'), qr/^permits=3 /, 'a lock with permits');
sees($_, 'pool', 'each holder learns') foreach $on_a, $also_a, $also_b;
release('pool', $on_a, $also_a, $also_b);

my $token = $on_a->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
my $attach = "BEGIN; SELECT redlock_attach('detached', $token) IS NULL; SELECT redlock_release_wanted('detached'); COMMIT";
is($on_a->query($attach), "f\nf", 'a detached lock');
ask('detached');
wait_until(sub { $on_a->query($attach) eq "f\nt" }, 'each session that is attached later learns');
is($on_a->run("SELECT redlock_release_wanted('detached')")->{state}, '55000', 'a session that is not attached does not hold the lock');
$on_a->query("SELECT redlock_release('detached', $token)");

# ---- nobody to ask ----

is(ask('nothing'), '', 'of a free lock the result is null');
acquire($on_a, 'kept', "hold_at_least => '1 h'");
release('kept', $on_a);
wait_until(sub { $on_b->query("SELECT state, nodes FROM redlock_holder('kept')") eq 'kept|5' }, 'a released lock is kept');
is(ask('kept'), '', 'nobody holds it');

$_->cli('SET', 'redlock:plain', 'mine') foreach @nodes;
my $result = $on_b->run("SELECT redlock_ask_release('plain')");
is($result->{state}, '55000', 'a plain client gets no messages');
is($result->{detail}, 'Another program holds the lock: mine.', 'the error names it');

$result = $on_a->run("SELECT redlock_release_wanted('nothing')");
is("$result->{state} $result->{message}", '55000 this session does not hold redlock "nothing"', 'a lock that is not held');
acquire($on_a, 'lost');
$on_b->query("SELECT redlock_force_release('lost')");
wait_until(sub { $on_a->run("SELECT redlock_release_wanted('lost')")->{state} eq '40001' }, 'a lost lock is an error');
release('lost', $on_a);

acquire($on_a, 'few');
$nodes[$_]->pause foreach 2 .. 4;
is($on_b->run("SELECT redlock_ask_release('few')")->{state}, '08006', 'two nodes are too few to know the holder');
$nodes[$_]->resume foreach 2 .. 4;
wait_nodes_ready($_, 5) foreach $host_a, $host_b;

# ---- rights ----

$on_b->query('CREATE ROLE weak; SET ROLE weak');
is($on_b->run("SELECT redlock_ask_release('few')")->{state}, '42501', 'not all roles may ask');
acquire($on_b, 'own');
is(wanted($on_b, 'own'), 'f', 'a holder needs no right to look');
is(wanted($on_a, 'few'), 'f', 'and nobody was asked');
$on_b->query('RESET ROLE; GRANT EXECUTE ON FUNCTION redlock_ask_release TO weak; SET ROLE weak');
like(ask('few'), $described, 'the right can be granted');
sees($on_a, 'few', 'and suffices');
like(slurp_file($host_b->logfile), qr/release of redlock "few" is asked for by role "weak"/, 'the log names the role');

$_->quit foreach $on_a, $also_a, $on_b, $also_b;
done_testing();

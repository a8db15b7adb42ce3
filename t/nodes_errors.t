# Messages and hints about a node that does not vote.
#
# Protects from: texts of nodes with noise of a script, or with two full stops; the same hint for
# all causes when the cause is known; advice to try again while most nodes are down; a node refused
# for a passing reason; an error of a former password staying; a state flickering; a session hearing
# of a session ahead, but not of which session; an error without its reason, if a wait ends just when
# the host begins to take locks.

use strict;
use warnings;

use HostileNode;
use IO::Socket::INET;
use RedlockTest;
use Test::More;

my $good = redis_node();
my $conf = "redlock.ttl = '10s'\nredlock.max_ttl = '10s'\nredlock.node_timeout = '2s'";
my $host = redlock_cluster('host', nodes => [$good], conf => $conf);
my $s    = session($host);

sub set_nodes
{
	my @urls = @_;

	$host->safe_psql('postgres', "ALTER SYSTEM SET redlock.nodes = '" . node_urls(@urls) . "'");
	$host->reload;
	ok( $host->poll_query_until('postgres',
			"SELECT count(*) = @{[scalar @urls]} AND bool_and(list = 'now') FROM redlock_nodes"),
		'the list is in force');
	return;
}

sub row_is
{
	my ($node, $what, $condition) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(
		$host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_nodes WHERE node = '$node' AND ($condition)"), $what)
	  || diag($host->safe_psql('postgres', 'TABLE redlock_nodes'));
}

# A try finds no quorum.  Before the error the nodes may still change their answers.
sub no_quorum
{
	my ($what, $detail, $hint) = @_;
	my $result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$result = $s->run("SELECT redlock_acquire('job', wait => '0', scope => 'session')");
			$s->run("SELECT redlock_release_all()");
			return $result->{state} eq '08006' && $result->{detail} =~ $detail && $result->{hint} =~ $hint;
		},
		"$what: the error says why, and what to do") or diag "$result->{message}\n$result->{detail}\n$result->{hint}";
	unlike($result->{detail}, qr/\.\.|\?\.|user_script/, "$what: without noise");
	return;
}

# ---- most nodes are down at the start ----

{
	my @down = map { 'redis://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1, 2;
	my $new = redlock_cluster('new', nodes => [ $good, @down ], conf => $conf, ready => 1);

	ok($new->poll_query_until('postgres', "SELECT count(*) = 2 FROM redlock_nodes WHERE last_error ~ '^could not connect'"), 'two nodes are down');
	my $result = psql_result($new, "SELECT redlock_acquire('job', wait => '0')");
	is($result->{state}, '08006', 'there is no quorum');
	like($result->{detail}, qr/: could not connect: Connection refused\b.*: could not connect: Connection refused\b/, 'the error says why');
	like($result->{hint}, qr/^See the view redlock_nodes, or call redlock_diagnose\(\)\. A quorum is a majority/, '... and does not advise a mere retry');
	$new->stop;
}

# ---- a database that does not exist ----

my @few = redis_nodes(2, conf => [qw(--databases 2)]);
set_nodes($good, map { $_->url . '/5' } @few);
row_is($few[0]->address . '/5', 'a node without that database is refused', q{state = 'refused' AND last_error = 'ERR DB index is out of range'});
no_quorum('database', qr/: ERR DB index is out of range/, qr/^Name an existing database of the node in redlock\.nodes on all hosts, and reload\. See the view redlock_nodes, or call redlock_diagnose\(\)\.$/);

my $ended = $host->safe_psql('postgres', 'SELECT clock_timestamp()');
$few[0]->kill9;
row_is($few[0]->address . '/5', 'a refused node that ends is away since then', "state <> 'refused' AND since > '$ended'");

# ---- passwords ----

my @guarded = redis_nodes(2, password => 'secret');
set_nodes($good, map { 'redis://' . $_->address } @guarded);
row_is($guarded[0]->address, 'no password where one is wanted', q{state = 'refused' AND last_error ~ '^NOAUTH Authentication required$'});
no_quorum('no password', qr/: NOAUTH Authentication required\.$/, qr/^Correct the user and password in redlock\.nodes, and reload\. See/);

# the broker tries the node again each second; between the tries the node stays refused
my $since = $host->safe_psql('postgres', "SELECT since FROM redlock_nodes WHERE node = '@{[$guarded[0]->address]}'");
my %states;
my $refusals = sub { return $guarded[0]->cli('INFO', 'errorstats') =~ /errorstat_NOAUTH:count=(\d+)/ ? $1 : 0; };
my $before = $refusals->();
wait_until(
	sub {
		$states{ $s->query("SELECT state FROM redlock_nodes WHERE node = '@{[$guarded[0]->address]}'") } = 1 foreach 1 .. 50;
		return $refusals->() >= $before + 20;
	},
	'the node refuses several more connections');
is(join(' ', sort keys %states), 'refused', 'it is refused all the time');
row_is($guarded[0]->address, 'since the first time', "since = '$since'");

set_nodes($good, @guarded);
wait_nodes_ready($host, 3);
row_is($guarded[0]->address, 'with the right password its former error is gone', 'last_error IS NULL AND last_error_at IS NULL');

my @open = redis_nodes(2);
set_nodes($good, map { 'redis://:secret@' . $_->address } @open);
no_quorum('a password where none is wanted', qr/: ERR AUTH <password> called without any password configured for the default user\.$/,
	qr/^Correct the user and password/);

# ---- one server under two names ----

set_nodes('redis://127.0.0.1:' . $good->port, 'redis://localhost:' . $good->port);
row_is('localhost:' . $good->port, 'a second name is refused', q{state = 'refused' AND last_error ~ 'it is the same server as node'});
no_quorum('a second name', qr/it is the same server as node/, qr/^List each server once in redlock\.nodes, and reload\./);

# ---- too few replicas ----

my @lonely = redis_nodes(2);
$_->cli(qw(CONFIG SET min-replicas-to-write 1)) foreach @lonely;
set_nodes($good, @lonely);
no_quorum('no replicas', qr/: NOREPLICAS Not enough good \w+ to write\b/, qr/^Start the replicas of the node, or set its min-replicas-to-write to 0\./);
$_->cli(qw(CONFIG SET min-replicas-to-write 0)) foreach @lonely;
wait_nodes_ready($host, 3);
is($s->query("SELECT redlock_try('job')"), 't', 'when that is mended the nodes vote');
$_->cli(qw(CONFIG SET min-replicas-to-write 1)) foreach @lonely;
no_quorum('replicas that went', qr/: NOREPLICAS Not enough good \w+ to write\b/, qr/^Start the replicas/);
$_->cli(qw(CONFIG SET min-replicas-to-write 0)) foreach @lonely;

# ---- a slow script ----

my @slow = redis_nodes(2, conf => [qw(--lua-time-limit 20)]);
set_nodes($good, @slow);
wait_nodes_ready($host, 3);
my @sockets = map { IO::Socket::INET->new('127.0.0.1:' . $_->port) } @slow;
print $_ "EVAL \"while true do end\" 0\r\n" foreach @sockets;
$_->flush foreach @sockets;
no_quorum('a slow script', qr/: BUSY \w+ is busy running a script/, qr/^Wait until the slow script on the node has ended, or end it by SCRIPT KILL there\./);
$_->cli(qw(SCRIPT KILL)) foreach @slow;
wait_until(sub { $s->query("SELECT redlock_try('job')") eq 't' }, 'when it has ended the nodes vote') ;

# ---- too many clients ----

my @full = redis_nodes(2);
my @holds = map { IO::Socket::INET->new('127.0.0.1:' . $_->port) } @full;
sub ask
{
	my ($socket, @words) = @_;
	print $socket "@words\r\n";
	$socket->flush;
	return scalar <$socket>;
}
like(ask($_, 'CONFIG SET maxclients 1'), qr/^\+OK/, 'a node takes one client, which is there') foreach @holds;
set_nodes($good, @full);
no_quorum('too many clients', qr/: ERR max number of clients reached/, qr/^Raise maxclients of the node, or close other connections to it\./);
row_is($full[0]->address, 'a node that is full of clients is tried again', q{state <> 'refused' AND last_error = 'ERR max number of clients reached'});
ask($_, 'CONFIG SET maxclients 100') foreach @holds;
wait_nodes_ready($host, 3);

# ---- the session ahead, on one server ----

my ($first, $second) = map { session($host) } 1, 2;
my ($pid, $second_pid) = ($first->pid, $second->pid);
my $time = qr/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\S+/;
my $of = qr/\(database "postgres", role "\w+"\)/;

sub before_us
{
	my ($what, $detail, @calls) = @_;

	foreach my $call (@calls ? @calls : ("redlock_acquire('own', wait => '0')", "redlock_acquire('own', wait => '20 ms')"))
	{
		like($s->run("SELECT $call")->{detail}, qr/^$detail\.$/, "$what: $call");
	}
	return;
}

$first->query("SELECT redlock_acquire('own', scope => 'session')");
before_us('held', "Process $pid of this server $of has held the lock since $time");
my $notice = $s->run("CALL redlock_run('own', 'SELECT 1')")->{err};
like($notice, qr/NOTICE: .*redlock "own" is held by another; skipped\n.*DETAIL:  Process $pid of this server $of has held the lock since $time\./s, 'a run that is skipped tells it');
$first->query("SELECT redlock_release('own'); SELECT redlock_acquire('own', scope => 'session', mode => 'shared')");
before_us('shared', "Sessions of this server have shared the lock since $time; see the view redlock_locks");
$first->query("SELECT redlock_release('own'); SELECT redlock_acquire('own', scope => 'detached', hold_at_most => '1 min') AS token \\gset");
before_us('detached', "The lock has been detached on this server $of since $time; see the view redlock_locks");
$first->query("SELECT redlock_release('own', :token)");
$good->cli('SET', 'redlock:own', 'plain', 'PX', 600000);
$_->cli('SET', 'redlock:own', 'plain', 'PX', 600000) foreach @full;
$first->send("SELECT redlock_acquire('own', scope => 'session')");
ok($host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'own' AND held_by = 'plain'"), 'a session waits for another client');
before_us('asked for', "Process $pid of this server $of is ahead of this session, and has waited since $time");
$_->cli('DEL', 'redlock:own') foreach $good, @full;
$first->result;

$_->quit foreach $first, $second, $s;

# ---- the host looks at other hosts first, and nodes answer late ----

my @ways  = map { HostileNode->new($_) } redis_nodes(3);
my $asks  = redlock_cluster('asks', nodes => \@ways, conf => $conf);
my @waits = map { 100 * $_ } 3 .. 22; # ms: some of them end just after the host's begin
my @waiters = map { session($asks) } @waits;
$_->obey([ '^EVALSHA', 'delay', '0.3' ]) foreach @ways;
kill 'STOP', my $broker = broker_pid($asks);
$asks->append_conf('postgresql.conf', "redlock.max_ttl = '11s'\n");
$asks->reload;
$waiters[$_]->send("SELECT redlock_acquire('asks $_', wait => '$waits[$_] ms') > 0") foreach 0 .. $#waits;
kill 'CONT', $broker;
my %reasons;
foreach my $waiter (@waiters)
{
	my $result = $waiter->result;
	my $text = $result->{state} eq '' ? 'acquired' : "$result->{detail} $result->{hint}";
	$reasons{ $text =~ /(acquired|until a moment ago|still asking|broker is stopped)/ ? $1 : 'none' }++;
	$waiter->quit;
}
ok($reasons{'until a moment ago'} && $reasons{acquired} && !$reasons{none}, 'each error tells its reason')
  or diag(explain(\%reasons));

done_testing();

# A broker that is stopped, or does not start.
#
# Protects from: sessions blaming the nodes, or another session, when the broker did not ask; tries
# finding a lock held after the end of a lease, because the broker did not note the end; a call
# never ending since released locks fill the table, or since the broker ends during a wait for
# sessions of this server; a server crashing again and again since its functions call another
# library file than the preloaded file.

use strict;
use warnings;

use File::Copy;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('stopped', nodes => \@nodes, conf => "redlock.max_locks = 16\nredlock.node_timeout = '200ms'");
my ($s, $t) = map { session($host) } 1, 2;
my $broker = broker_pid($host);

sub fails_by_the_broker
{
	my ($result, $what) = @_;

	like("$result->{state} $result->{message}", qr/^55000 the redlock broker has not asked for "\w+" in time$/, $what);
	like($result->{hint}, qr/see the server log and process $broker/, 'and names it');
	return;
}

# a session that shares the request of another session reports the same error
kill 'STOP', $broker;
foreach my $wait (0, 1)
{
	my $name = "shared$wait";

	$s->send("SELECT redlock_acquire('$name', mode => 'shared'" . ($wait ? ", wait => '1 min'" : '') . ')');
	wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = '$name'") == 1 }, 'one asks');
	fails_by_the_broker($t->run($wait ? "SELECT redlock_acquire('$name', mode => 'shared', wait => '100 ms')" : "SELECT redlock_try('$name', mode => 'shared')"),
		'who awaits the answer to another session');
	$host->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $s->pid . ')') if $wait;
	my $result = $s->result;
	fails_by_the_broker($result, 'as that one') unless $wait;
}

# a session that waited for a holder most of the time does not blame the broker for a late request
{
	my ($holder, $first) = map { session($host) } 1, 2;

	$host->append_conf('postgresql.conf', "redlock.node_timeout = '20s'");
	kill 'CONT', $broker;
	$host->reload;
	$_->poll_query_until('postgres', "SELECT setting = '20000' FROM pg_settings WHERE name = 'redlock.node_timeout'") foreach $host;
	$holder->query("SELECT redlock_acquire('late', scope => 'session')");
	$first->send("SELECT redlock_acquire('late', mode => 'shared')");
	wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') == 1 }, 'one waits at the gate');
	$t->send("SELECT redlock_acquire('late', mode => 'shared', wait => '4 s')");
	wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') == 2 }, 'and another, for four seconds');
	kill 'STOP', $broker;
	sleep 2; # time is the subject: most of the wait
	$holder->query("SELECT redlock_release('late')");
	is($t->result->{state}, '55P03', 'who waited for a holder most of the time does not blame the broker');
	kill 'CONT', $broker;
	$first->result;
	$host->append_conf('postgresql.conf', "redlock.node_timeout = '200ms'");
	$host->reload;
	$host->poll_query_until('postgres', "SELECT setting = '200' FROM pg_settings WHERE name = 'redlock.node_timeout'");
	kill 'STOP', $broker;
	$_->quit foreach $holder, $first;
}

# a cancelled request keeps its entry until the broker frees the entry
$s->query("SET statement_timeout = '20ms'");
$s->run("SELECT redlock_try('entry $_')") foreach 1 .. 100;
is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'entry 100'"),
	0, 'released locks fill the table');
$s->query('RESET statement_timeout');
{
	my $result = $s->run("SELECT redlock_acquire('brief', wait => '50 ms')");

	is("$result->{state} $result->{message}", '53400 released redlocks fill the lock table of this server', 'a short wait is told why');
	like($result->{detail}, qr/ redlocks are held or requested, of at most 16\. \d\d released redlocks keep /, 'with both numbers');
	like($result->{hint}, qr/process $broker, the broker/, 'and the process to look at');
}
$s->send("SELECT redlock_try('one')");
$t->send("SELECT redlock_acquire('more')");
fails_by_the_broker($_->result, 'who finds no entry does not wait for ever') foreach $s, $t;
kill 'CONT', $broker;
ok(wait_until(sub { $s->run("SELECT redlock_try('one')")->{out} eq 't' }, 'a lock'), 'and it goes on with the broker');

# only the broker notes the end of a lease
$t->query("SELECT redlock_acquire('idle', scope => 'session', ttl => '1 s')");
$t->query("SELECT redlock_acquire('detached', scope => 'detached', ttl => '1 s', hold_at_most => '1 s')");
kill 'STOP', $broker;
foreach my $name (qw(idle detached))
{
	my $result;

	wait_until(sub { $result = $s->run("SELECT redlock_try('$name')"); return $result->{state} ne ''; }, "$name: a try does not find the lock held for ever");
	fails_by_the_broker($result, "$name: the try");
	fails_by_the_broker($s->run("CALL redlock_run('$name', 'SELECT 1')"), "$name: a run is not skipped");
	fails_by_the_broker($s->run("SELECT redlock_acquire('$name', wait => '1 s')"), "$name: a wait");
}
kill 'CONT', $broker;
wait_until(sub { $s->run("SELECT redlock_try('idle'), redlock_try('detached')")->{out} eq 't|t' }, 'the broker notes both');
$_->quit foreach $s, $t;

# waits for locks that sessions of this server hold
{
	my %wait = (
		'at a gate'                  => "redlock_acquire('held')",
		'as a reader at a gate'      => "redlock_acquire('held', mode => 'shared')",
		'at a gate, of several'      => "redlock_acquire_all('{first,held}')",
		'behind a detached lock'     => "redlock_acquire('kept')",
		'behind a lock without gate' => "redlock_acquire('loose')");
	my ($holder, $loser, $bounded) = map { session($host) } 1 .. 3;
	my %waiter = map { $_ => session($host) } keys %wait;
	my $path = $host->safe_psql('postgres', 'SHOW dynamic_library_path');

	# after a first call, a session finds the function without the path
	$_->query("SELECT redlock_acquire_all('{warm}'), redlock_acquire('warm')") foreach $holder, $loser, $bounded, values %waiter;
	$holder->query("SELECT redlock_acquire('kept', scope => 'detached', hold_at_most => '10 min', ttl => '1 min')");
	$loser->query('BEGIN'); # the commit would enter the gate again
	$loser->query("SELECT redlock_acquire('loose', ttl => '1 min', scope => 'session')");
	$loser->query('SELECT pg_advisory_unlock_all()');
	$holder->query("SELECT redlock_acquire('held', scope => 'session', ttl => '1 min')");
	$bounded->send("SELECT redlock_acquire('held', wait => '10 min')");
	$waiter{$_}->send("SELECT $wait{$_}") foreach keys %wait;
	wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') == 4 }, 'four wait at gates');
	$host->append_conf('postgresql.conf', "dynamic_library_path = '/nowhere'");
	$host->reload;
	$host->poll_query_until('postgres', "SELECT setting = '/nowhere' FROM pg_settings WHERE name = 'dynamic_library_path'");
	kill 'TERM', broker_pid($host);
	foreach my $name (sort keys %wait)
	{
		my $result;

		wait_until(sub { $waiter{$name}->done }, "no broker starts: a wait $name ends");
		$result = $waiter{$name}->done ? $waiter{$name}->result : {state => '', message => ''};
		is("$result->{state} $result->{message}", '55000 the redlock broker is not running', 'with the reason');
	}
	ok(!$bounded->done, 'but `wait` outlasts it');
	$host->append_conf('postgresql.conf', "dynamic_library_path = '$path'");
	$host->reload;
	wait_until(sub { broker_pid($host) ne '' }, 'a broker starts');
	$holder->query("SELECT redlock_release('held')");
	is($bounded->result->{state}, '', 'and the wait goes on to its lock');
	$_->quit foreach $holder, $loser, $bounded, values %waiter;
}

# the broker's process does not load the preloaded copy
my $dir = PostgreSQL::Test::Utils::tempdir();
chomp(my $libdir = qx(pg_config --pkglibdir));
copy("$libdir/redlock_pg.so", "$dir/redlock_pg.so") or die "copy: $!";
$host->append_conf('postgresql.conf', "shared_preload_libraries = '$dir/redlock_pg.so'");
$host->restart;
ok( wait_until(
		sub { slurp_file($host->logfile) =~ /the redlock broker does not start: redlock_pg was preloaded from another file/ },
		'a word in the log'),
	'it says so');
is($host->safe_psql('postgres', 'SELECT 1'), 1, 'and the server runs');
unlike(slurp_file($host->logfile), qr/was terminated by signal/, 'nothing crashes');
is(psql_result($host, "SELECT redlock_try('x')")->{state}, '55000', 'calls say that they can not work');

done_testing();

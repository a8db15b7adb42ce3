# A name service that fails or hangs disturbs nothing.
#
# Protects from (invariant 15): a server, or a broker, refusing to stop during a name lookup; a
# signal striking during a lookup; a node delaying other nodes while its name is not resolved, at a
# start or after a change of the list; threads piling up.
#
# A library makes a name hang until the test ends the hang, see test/hostile/faults.c.  So a step
# that waits for a lookup never ends.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $faults = PostgreSQL::Test::Utils::tempdir();
my $library = preload('faults') // plan skip_all => 'no C compiler';

my @nodes = redis_nodes(3);
my $host;

sub set_fault
{
	my ($name, $on) = @_;

	if ($on)
	{
		append_to_file("$faults/$name", '');
	}
	else
	{
		unlink "$faults/$name";
	}
	return;
}

sub with_faults
{
	my ($start) = @_;

	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAULTS_DIR} = $faults;
	return $start->();
}

sub set_nodes
{
	my (@urls) = @_;

	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@urls) . "'");
	$host->reload;
	return;
}

sub wait_for_node
{
	my ($address, $condition, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok( $host->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_nodes WHERE node = '$address' AND $condition"),
		$description)
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
	return;
}

# Is the broker still in its first lookup of the name?  A long lookup counts as an error, and the
# next lookup follows.
sub is_first_lookup
{
	my ($address) = @_;

	return $host->safe_psql('postgres', <<SQL) eq 't';
SELECT n.state = 'resolving' AND n.last_error IS NULL AND s.timeouts + s.connection_errors + s.other_errors = 0
FROM redlock_nodes n JOIN redlock_stat_nodes s USING (node) WHERE node = '$address'
SQL
}

# Tries get a lock at once, before the first lookup of the name has ended.
sub grants_during_first_lookup
{
	my ($address, $when) = @_;
	my $granted = 0;
	my $is_first = 1;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$granted = psql_result($host, "SELECT redlock_try('tried')")->{out} eq 't';
			$is_first = is_first_lookup($address);
			return $granted || !$is_first;
		},
		"$when: tries have an answer");
	ok($granted && $is_first, "$when: the other nodes are a quorum while a name hangs")
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
	return;
}

# The contents of a file of each thread of the broker, except the main thread.
sub threads
{
	my ($file) = @_;
	my $pid = broker_pid($host);

	return map { eval { slurp_file("$_/$file") } // () } grep { !m{/$pid$} } glob "/proc/$pid/task/*";
}

# Stops the server by a fast shutdown, which must not wait for a hanging lookup.
sub stops
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($host->stop('fast', fail_ok => 1), "$what: the server stops")
	  or $host->stop('immediate');
	return;
}

# ---- a name that hangs ----

set_fault('slow-names', 1);
$host = with_faults(
	sub {
		redlock_cluster('host',
			nodes => [ @nodes, 'redis://slow-0.invalid:1' ],
			ready => 3,
			conf  => "redlock.ttl = '10s'\nredlock.node_timeout = '200ms'");
	});
my $s = session($host);
wait_for_node('slow-0.invalid:1', "state = 'resolving'", 'a name hangs');
grants_during_first_lookup('slow-0.invalid:1', 'after a start');
is($s->query("SELECT redlock_try('job', scope => 'session')"), 't', 'a session takes a lock');

my @status = threads('status');
is(scalar @status, 1, 'the resolver hangs in one thread of its own');
my ($blocked) = ($status[0] // '') =~ /^SigBlk:\s+([0-9a-f]+)/m;
# all signals except KILL and STOP, and the two signals that glibc keeps for itself
is($blocked, 'fffffffe7ffbfeff', 'which takes no signal');

replace_broker($host);
wait_for_node('slow-0.invalid:1', "state = 'resolving'", 'the next broker resolves the name again');
is($s->query("SELECT redlock_check('job') > '0'"), 't', 'the lease is valid');

# ---- a name that hangs in a changed list ----

set_nodes(@nodes, 'redis://slow-1.invalid:1');
wait_for_node('slow-1.invalid:1', "state = 'resolving'", 'a new name hangs');
grants_during_first_lookup('slow-1.invalid:1', 'after a reload');

# ---- many names that hang ----

foreach my $n (1 .. 40)
{
	set_nodes(@nodes, "redis://slow-$n.invalid:1");
	$host->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM redlock_nodes WHERE node = 'slow-$n.invalid:1'")
	  or die "no node $n";
}
wait_for_node('slow-40.invalid:1', "last_error = 'too many host names are being resolved already'",
	'many names that hang are too many');
is(scalar(() = threads('status')), 32, 'the number of threads is bounded');
is($s->query("SELECT redlock_try('other', scope => 'session')"), 't', 'the other nodes work');
set_fault('slow-names', 0);
wait_until(sub { threads('status') <= 1 }, 'the threads end');
wait_for_node('slow-40.invalid:1', "last_error ~ '^could not resolve the host name: '",
	'then the last name is asked for');

is($s->query('SELECT redlock_release_all()'), 2, 'locks are released');
$s->quit;

# ---- a name with an address, and no thread ----

set_fault('no-threads', 1);
set_nodes(@nodes[ 0, 1 ], $nodes[2]->url(host => 'localhost'));
my $by_name = 'localhost:' . $nodes[2]->port;
wait_for_node($by_name, "last_error = 'could not start a thread to resolve the host name: Resource temporarily unavailable'",
	'where no thread can be started, the view says so');
set_fault('no-threads', 0);
wait_for_node($by_name, "state = 'ready'", 'it is tried again');

# ---- a lookup is answered before the broker starts the next lookup ----

# Each answer belongs to its own name: during a round of lookups the broker reads no answer.
set_fault('quick-threads', 1);
set_nodes(@nodes[ 0, 1 ]);
$host->poll_query_until('postgres', 'SELECT count(*) = 2 FROM redlock_nodes') or die 'nodes are left';
set_nodes(@nodes[ 0, 1 ], $nodes[2]->url(host => 'localhost'), 'redis://no-such-host.invalid:1');
wait_for_node('no-such-host.invalid:1', "last_error ~ '^could not resolve the host name: '", 'a name is unknown');
# the node may not listen on the first address
wait_for_node($by_name, "state = 'ready' AND coalesce(last_error, '') !~ 'resolve'",
	'another is resolved at once');
set_fault('quick-threads', 0);

# ---- a reload while the broker starts ----

ok($host->stop('fast', fail_ok => 1), 'the server stops');
set_fault('late-workers', 1);
with_faults(sub { $host->start });
set_nodes(@nodes[ 0, 1 ], 'redis://no-such-host.invalid:2');
set_fault('late-workers', 0);
wait_for_node('no-such-host.invalid:2', 'true', 'the change of the list is not lost');

# ---- stop ----

# Names that hang, and names that fail at once, looked up again and again.
foreach my $round (1 .. 9)
{
	my $name = $round % 3 == 0 ? 'no-such-host' : 'slow';

	set_fault('slow-names', $round % 3 == 1);
	$host->append_conf('postgresql.conf', "redlock.nodes = ''");
	with_faults(sub { $host->start }) unless $round == 1;
	set_nodes('redis://127.0.0.1:1', "redis://$name.invalid:1");
	wait_for_node("$name.invalid:1", 'true', "round $round: $name is a node");
	is(psql_result($host, "SELECT redlock_try('job')")->{state}, '08006', "round $round: there is no quorum");
	stops("round $round, $name");
}

done_testing();

# Leases outlive the broker when redlock.nodes has changed since the grant: the new broker finds the
# nodes of the leases.
#
# Protects from: a lease lost while all its nodes are well, because the broker was replaced when
# redlock.nodes named other nodes, no nodes or other passwords; the same with a list not yet in
# force, and with a list in force without connections; a password shown; a request's key staying for
# its ttl at a node removed during the request.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $secret = 'S3cr3t';
my $other_secret = 'An0ther';

my $faults = PostgreSQL::Test::Utils::tempdir();
my $library = preload('faults') // plan skip_all => 'no C compiler';

# every way to reach a node
my $plain   = redis_node();
my $guarded = redis_node(password => $secret);
my $unix    = redis_node(unix => 1);
my $by_name = redis_node();
my $db3     = redis_node();
my @old     = (
	$plain, $guarded, $unix,
	$by_name->url(host => 'localhost'),
	$db3->url(db => 3));
my @new = redis_nodes(3);

my $host;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAULTS_DIR} = $faults;
	$host = redlock_cluster('host', nodes => \@old, conf => "redlock.ttl = '6s'");
}
my $s = session($host);

sub nodes_are
{
	my ($query) = @_;
	return $host->poll_query_until('postgres', "SELECT $query FROM redlock_nodes");
}

# Puts nodes into force, and waits for this condition on redlock_nodes.
sub set_nodes
{
	my ($condition, @nodes) = @_;

	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@nodes) . "'");
	$host->reload;
	nodes_are($condition) or die 'redlock.nodes is not in force';
}

sub replaced
{
	my ($pid, $how) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { broker_pid($host) =~ /^(?!$pid$)\d+$/ }, "the broker is replaced ($how)");
}

# Replaces the broker in several ways; each successor must renew the lease.
sub lives_on
{
	my ($what) = @_;
	my %ways = (
		'terminated' => sub { kill 'TERM', $_[0] },
		'terminated again' => sub { kill 'TERM', $_[0] },
		'it failed' => sub {
			my $size = -s $host->logfile;

			append_to_file("$faults/no-memory", '');
			kill 'TERM', $_[0];
			wait_until(sub { substr(slurp_file($host->logfile), $size) =~ /out of memory for commands/ },
				"$what: a broker fails");
			unlink "$faults/no-memory";
		});

	foreach my $way (sort keys %ways)
	{
		my $pid = broker_pid($host);
		my $renewed = $s->query('SELECT renewed FROM redlock_stats');

		$ways{$way}->($pid);
		replaced($pid, "$what, $way");
		ok($host->poll_query_until('postgres', "SELECT renewed >= $renewed + 2 FROM redlock_stats"),
			"$what, $way: the new broker renews the lease")
		  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
		is($s->run("SELECT redlock_check('held') > '0'")->{out}, 't', "$what, $way: which is valid");
	}
	is($s->query('SELECT lost FROM redlock_stats'), '0', "$what: no lease was lost");
	unlike($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes; SHOW redlock.nodes'),
		qr/$secret|$other_secret/, "$what: no password is shown");
	return;
}

sub is_given_back
{
	my ($what) = @_;

	is($s->query("SELECT redlock_release('held')"), 't', "$what: it is released");
	wait_until(
		sub {
			key_count('redlock:held', $plain, $guarded, $unix, $by_name) == 0
			  && $db3->cli('-n', '3', 'EXISTS', 'redlock:held') eq '0';
		},
		"$what: no key is left", 4);
	ok(nodes_are("count(*) FILTER (WHERE state = 'leaving') = 0"),
		"$what: then no host stays connected to unlisted nodes");
	return;
}

# ---- no nodes, and other nodes ----

my $all_left = "count(*) FILTER (WHERE state = 'leaving') = 5";
my %lists = (
	'no nodes'    => [ $all_left ],
	'other nodes' => [ "$all_left AND count(*) FILTER (WHERE state = 'ready') = 3", @new ]);
foreach my $what (sort keys %lists)
{
	$s->query("SELECT redlock_acquire('held', scope => 'session')");
	set_nodes(@{ $lists{$what} });
	lives_on($what);
	my $result = $s->run("SELECT redlock_try('new')");
	is("$result->{out}$result->{state}", $what eq 'no nodes' ? '55000' : 't',
		"$what: new locks are asked for where the list says");
	is_given_back($what);
	set_nodes("count(*) = 5 AND bool_and(state = 'ready')", @old);
}

# ---- a password ----

$s->query("SELECT redlock_acquire('held', scope => 'session')");
$plain->kill9;
$by_name->kill9;
foreach my $when ('with the broker that knew the old one', 'while there is none')
{
	my $password = $when =~ /none/ ? $secret : $other_secret;
	my $pid = broker_pid($host);
	my $renewed = $s->query('SELECT renewed FROM redlock_stats');

	$guarded->cli('CONFIG', 'SET', 'requirepass', $password);
	$guarded->{password} = $password;
	if ($when =~ /none/)
	{
		# the postmaster reads the file, a stopped broker does not
		kill 'STOP', $pid;
		kill 'TERM', $pid;
	}
	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@old[ 0, 2 .. 4 ], $guarded) . "'");
	my $size = -s $host->logfile;
	$host->reload;
	wait_until(sub { substr(slurp_file($host->logfile), $size) =~ /received SIGHUP/ }, 'the file is read');
	$guarded->cli('CLIENT', 'KILL', 'TYPE', 'normal');
	kill 'CONT', $pid if $when =~ /none/;
	kill 'TERM', $pid if $when !~ /none/;
	replaced($pid, "a new password $when");
	ok($host->poll_query_until('postgres', "SELECT renewed >= $renewed + 3 FROM redlock_stats"),
		"a new password $when: the lease is renewed");
	ok(nodes_are("count(*) FILTER (WHERE state = 'ready') = 3"), "a new password $when: it is used");
}
is($s->query('SELECT lost FROM redlock_stats'), '0', 'no lease was lost');
$_->start foreach $plain, $by_name;
ok(nodes_are("count(*) FILTER (WHERE state = 'ready') = 5"), 'the other two are back');
is_given_back('a password');

# ---- a list has to wait for room ----

# nine nodes in use, and nine more nodes
my @dead = map { 'redis://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1 .. 13;
my @nine = ($plain, $guarded, $unix, @old[ 3, 4 ], @dead[ 0 .. 3 ]);
set_nodes("count(*) = 9 AND count(*) FILTER (WHERE state = 'ready') = 5", @nine);
$s->query("SELECT redlock_acquire('held', scope => 'session')");
$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@dead[ 4 .. 12 ]) . "'");
$host->reload;
wait_until(sub { slurp_file($host->logfile) =~ /redlock.nodes is not yet in force/ },
	'a list has to wait');
lives_on('a list that waits');
is($s->query("SELECT redlock_try('new')"), 't', 'meanwhile the old list is in force');
$s->query("SELECT redlock_release('held')");
ok(nodes_are("count(*) = 9 AND count(*) FILTER (WHERE state = 'ready') = 0"), 'then it is put into force');

# ---- a node is removed during a request ----

# A stranger holds the lock on two nodes, and two nodes are silent: a single node has granted the
# lock.
set_nodes("count(*) = 5 AND bool_and(state = 'ready')", @old);
$host->append_conf('postgresql.conf', "redlock.node_timeout = '30s'");
$host->reload;
$host->poll_query_until('postgres', 'SHOW redlock.node_timeout', '30s') or die 'no reload';
$_->cli('SET', 'redlock:asked', 'of another') foreach $plain, $unix;
$_->pause foreach $by_name, $db3;
$s->send("SELECT redlock_acquire('asked', ttl => '60s', wait => '2min') > 0");
wait_until(sub { $guarded->cli('EXISTS', 'redlock:asked') eq '1' }, 'one node says yes');
set_nodes("bool_or(state = 'leaving') OR count(*) = 4", @old[ 0, 2 .. 4 ]);
wait_until(sub { $guarded->cli('EXISTS', 'redlock:asked') eq '0' },
	'a node that was asked when it was removed is told to forget that', 20);
ok(nodes_are('count(*) = 4'), 'and is left then');
$_->resume foreach $by_name, $db3;
$_->cli('DEL', 'redlock:asked') foreach $plain, $unix;
is($s->result->{out}, 't', 'who waits gets the lock from the nodes that are listed');
is($guarded->cli('EXISTS', 'redlock:asked'), '0', 'and from no other');

$s->quit;
$host->stop;
unlike(slurp_file($host->logfile), qr/$secret|$other_secret/, 'no password in the log');

done_testing();

# Nodes by each kind of address: IPv6, Unix sockets, names with several addresses, and names that
# lead to another server, as names of rented nodes do after a failover.
#
# Protects from: an address never tried; an unreachable address hiding the reason of a server that
# refuses; a node staying away after its name has changed, or hanging at the former server; a server
# taking over, and voting without its predecessor's grants (invariants 1 and 8).
#
# A library fakes the answers of the name service, see test/hostile/faults.c.  All nodes listen on
# addresses of the loopback interface.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $faults = PostgreSQL::Test::Utils::tempdir();
my $library = preload('faults') // plan skip_all => 'no C compiler';
my %names;
my $host;

sub set_name
{
	my ($name, @addresses) = @_;

	$names{$name} = "@addresses";
	append_to_file("$faults/new", join '', map { "$_ $names{$_}\n" } keys %names);
	rename "$faults/new", "$faults/names" or die "names: $!";
	return;
}

sub start_host
{
	my ($name, @options) = @_;

	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAULTS_DIR} = $faults;
	return redlock_cluster($name, @options);
}

sub set_nodes
{
	my (@urls) = @_;

	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@urls) . "'");
	$host->reload;
	return;
}

sub view
{
	my ($address, $columns) = @_;
	return $host->safe_psql('postgres', "SELECT $columns FROM redlock_nodes WHERE node = '$address'");
}

sub wait_for_node
{
	my ($address, $condition, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { view($address, $condition) eq 't' }, $description)
	  or diag($host->safe_psql('postgres', 'TABLE redlock_nodes'));
	return;
}

sub clock { return $host->safe_psql('postgres', 'SELECT clock_timestamp()'); }

# Has the broker connections to the node?  One connection is the question's own.
sub is_used { return $_[0]->cli(qw(INFO clients)) =~ /connected_clients:([2-9])/; }

# ---- IPv6 and Unix sockets ----

{
	my $ipv6 = eval { redis_node(host => '::1') };
	my $unix = redis_node(unix => 1);
	my $plain = redis_node();
	my @nodes = grep { defined } $ipv6, $unix, $plain;

	$host = start_host('kinds', nodes => \@nodes, conf => "redlock.ttl = '60s'");
	my $s = session($host);
	note 'no IPv6 here' unless $ipv6;
	is(view($_->address, 'state'), 'ready', 'a node at ' . ($_->address =~ s/.*\///r)) foreach @nodes;
	$s->query("SELECT redlock_acquire('job', scope => 'session')");
	wait_until(sub { key_count('redlock:job', @nodes) == @nodes }, 'all vote');

	foreach my $node ($ipv6 // (), $unix)
	{
		my $before = clock();

		$node->kill9;
		wait_for_node($node->address, "state = 'backing off' AND last_error ~ '^could not connect: '", 'it is down');
		$node->start;
		wait_for_node($node->address, "state = 'ready' AND since > '$before'", 'and up again');
		wait_until(sub { key_count('redlock:job', $node) == 1 }, 'the restarted node has the key again');
	}
	$s->query("SELECT redlock_release('job')");
	wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'all release');

	# a missing file
	my $nowhere = $unix->socket =~ s/redis\.sock/none.sock/r;
	set_nodes($plain, "unix://$nowhere");
	wait_for_node($nowhere, "last_error = 'could not connect: No such file or directory'", 'a socket that is not there');
	$s->quit;
	$host->stop;
	$_->kill9 foreach @nodes;
}

# ---- a name with several addresses ----

{
	my @nodes = redis_nodes(2);
	my $node  = redis_node(conf => [ '--bind', '127.0.0.1 127.0.0.2' ]);
	my $by    = sub { $node->url(host => shift) };
	my $port  = $node->port;
	my @dead  = map { "127.0.0.1$_" } 1 .. 9;

	# a server that listens on IPv4 only; then the good address comes last of six, of sixteen
	set_name('both.invalid', '::1', '127.0.0.1');
	$host = start_host('several', nodes => [ @nodes, $by->('both.invalid') ], conf => "redlock.ttl = '60s'");
	is(view("both.invalid:$port", 'state'), 'ready', 'the second address is tried');
	set_name('some.invalid', @dead[ 0 .. 4 ], '127.0.0.1');
	set_nodes(@nodes, $by->('some.invalid'));
	wait_for_node("some.invalid:$port", "state = 'ready'", 'so is the sixth');
	set_name('most.invalid', (map { "127.0.1.$_" } 1 .. 15), '127.0.0.1');
	set_nodes(@nodes, $by->('most.invalid'));
	wait_for_node("most.invalid:$port", "state = 'ready'", 'and the sixteenth');
	set_name('more.invalid', '127.0.0.1', map { "127.0.1.$_" } 1 .. 16);
	set_nodes(@nodes, $by->('more.invalid'));
	wait_for_node("more.invalid:$port", "last_error = 'the host name has more than 16 addresses'", 'more are an error');

	# the good address is tried first when the connection breaks
	set_name('good.invalid', '127.0.0.11', '127.0.0.1', '127.0.0.12');
	set_nodes(@nodes, $by->('good.invalid'));
	wait_for_node("good.invalid:$port", "state = 'ready'", 'one of three is good');
	foreach my $time (1 .. 3)
	{
		my $before = clock();

		$node->cli(qw(CLIENT KILL TYPE normal));
		wait_for_node("good.invalid:$port", "state = 'ready' AND since > '$before'", 'its connection breaks');
		is(view("good.invalid:$port", 'last_error'), 'it closed the connection', 'it is connected to again at once');
	}

	# both addresses fail, with different errors: the log does not fill
	my $replica = redis_node(port => $port, host => '127.0.0.3', conf => [ '--replicaof', "127.0.0.1 $port" ]);
	my $asked = sub { $replica->cli(qw(INFO commandstats)) =~ /^cmdstat_config(?:\|get)?:calls=(\d+)/m ? $1 : 0 };
	set_name('wrong.invalid', '127.0.0.3', '127.0.0.11');
	set_nodes(@nodes, $by->('wrong.invalid'));
	wait_until(sub { $asked->() >= 6 }, 'addresses that fail are tried again and again');
	my $lines = () = slurp_file($host->logfile) =~ /LOG:  redlock node wrong\.invalid/g;
	cmp_ok($lines, '<', $asked->(), 'the log does not tell each time');

	# the view shows the reason of the server that answers, in each order of the addresses
	foreach my $order ([ 'wrong', '127.0.0.3', '127.0.0.11' ], [ 'last', '127.0.0.11', '127.0.0.3' ])
	{
		my ($name, @addresses) = @$order;
		my $address = "$name.invalid:$port";
		my %seen;

		set_name("$name.invalid", @addresses);
		set_nodes(@nodes, $by->("$name.invalid"));
		wait_for_node($address, "state = 'refused' AND last_error ~ '^it is a replica'", "$name: refused");
		my ($since, $before) = (view($address, 'since'), $asked->());
		my $s = session($host);
		wait_until(
			sub {
				$seen{ $s->query("SELECT state || ': ' || last_error FROM redlock_nodes WHERE node = '$address'") } = 1 foreach 1 .. 50;
				return $asked->() >= $before + 4;
			},
			"$name: ... again and again");
		is(join(', ', keys %seen), 'refused: it is a replica; a node must be an independent server', "$name: ... and always shown so");
		is(view($address, 'since'), $since, "$name: ... since the first time");
		$s->quit;
	}
	$replica->kill9;
	wait_for_node("last.invalid:$port", "state <> 'refused' AND last_error ~ '^could not connect'", 'when that server is gone its reason goes');

	# the addresses come in another order each time, and lead to the same server
	append_to_file("$faults/rotated-names", '');
	set_name('turns.invalid', '127.0.0.11', '127.0.0.1', '127.0.0.2');
	set_nodes(@nodes, $by->('turns.invalid'));
	my $votes = "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'";
	foreach my $time (1 .. 2)
	{
		ok($host->poll_query_until('postgres', $votes), 'addresses in turns: ready');
		my $before = clock();
		$node->restart;
		wait_for_node("turns.invalid:$port", "state = 'ready' AND since > '$before' AND quarantine IS NULL", 'also after a restart');
	}
	unlike(slurp_file($host->logfile), qr/does not vote/, 'and never in quarantine');
	unlink "$faults/rotated-names";
	$host->stop;
	$_->kill9 foreach @nodes, $node;
}

# ---- a name that leads to another server ----

# A server, and its replica on the same port of another address.
sub pair
{
	my (%options) = @_;
	my $first  = redis_node(host => '127.0.0.2', %options);
	my $second = redis_node(host => '127.0.0.3', port => $first->port, %options);

	$second->cli('REPLICAOF', '127.0.0.2', $first->port);
	wait_until(sub { $second->cli(qw(INFO replication)) =~ /master_link_status:up/ }, 'a replica follows');
	return ($first, $second);
}

sub take_over
{
	my ($name, $first, $second) = @_;

	$second->cli(qw(REPLICAOF NO ONE));
	set_name($name, '127.0.0.3');
	return;
}

{
	my @nodes = redis_nodes(2);
	my %gone = (
		dies => sub { $_[0]->kill9 },
		hangs => sub { $_[0]->pause },
		# a clean failover: the server lives on, and keeps its connections
		demoted => sub { $_[0]->cli('REPLICAOF', '127.0.0.3', $_[0]->port) },
	);

	foreach my $how (sort keys %gone)
	{
		my ($first, $second) = pair();
		my $address = "$how.invalid:" . $first->port;

		set_name("$how.invalid", '127.0.0.2');
		my @urls = (@nodes, $first->url(host => "$how.invalid"));
		if ($host && $host->name eq 'moves')
		{
			set_nodes(@urls);
			wait_for_node($address, "state = 'ready'", "$how: ready");
		}
		else
		{
			$host = start_host('moves', nodes => \@urls, conf => "redlock.ttl = '60s'");
		}
		my $s = session($host);
		$s->query('SET client_min_messages = error');
		$s->query("SELECT redlock_acquire('held $how', scope => 'session')");
		wait_until(sub { key_count("redlock:held $how", $first, $second) == 2 }, "$how: a lock is held");

		take_over("$how.invalid", $first, $second);
		$gone{$how}->($first);
		wait_until(
			sub {
				$s->query("SELECT redlock_try('job')");
				return is_used($second) && view($address, "state = 'ready'") eq 't';
			},
			"$how: the node is used where its name leads now")
		  or diag($host->safe_psql('postgres', 'TABLE redlock_nodes'));
		$s->query("SELECT redlock_acquire('new', scope => 'session')");
		wait_until(sub { key_count('redlock:new', $second) == 1 }, "$how: and votes");
		is($s->query("SELECT redlock_check('held $how') > '0'"), 't', "$how: what was held still is");
		is(psql_result($host, "SELECT redlock_try('held $how')")->{out}, 'f', "$how: nobody else gets it");
		is($s->query('SELECT redlock_release_all()'), 2, "$how: and it is released");
		wait_until(sub { key_count("redlock:held $how", $second) == 0 }, "$how: there");
		$s->quit;
		$first->resume if $how eq 'hangs';
		set_nodes(@nodes);
		$_->kill9 foreach $first, $second;
	}

	# a replica may lack the latest grants: without durable=yes the replica does not vote
	my ($first, $second) = pair(persist => 0);
	my $address = 'forgets.invalid:' . $first->port;

	set_name('forgets.invalid', '127.0.0.2');
	$host->append_conf('postgresql.conf', "redlock.max_ttl = '60s'");
	set_nodes(@nodes, $first->url(host => 'forgets.invalid'));
	wait_for_node($address, "state = 'quarantined'", 'a node without persistence is young');
	take_over('forgets.invalid', $first, $second);
	$first->kill9;
	wait_until(sub { is_used($second) }, 'its replica takes over');
	wait_for_node($address, "state = 'quarantined' AND quarantine ~ 'its appendonly is no'", 'and does not vote');
	$host->stop;
}

done_testing();

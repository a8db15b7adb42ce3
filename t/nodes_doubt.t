# Nodes that do not answer, or answer late, and connections that break: when the broker drops a
# connection, and when the broker connects again.
#
# Protects from: a loop sleeping for seconds after a connection broke during a write, or died
# before a renewal; connections of slow nodes replaced in vain, or again and again, so that a
# hanging node never counts as failed; a node closing each connection, and being connected again
# without a pause; keys set by a node before the rest of the same call failed (invariant 7); tries
# failing while the broker replaces broken connections.

use strict;
use warnings;

use HostileNode;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

# A host checks its connections when its clock is a multiple of 5 s.
sub phase
{
	my ($up) = split ' ', slurp_file('/proc/uptime');
	return $up - 5 * int($up / 5);
}

# How often the host logged this text about the node.
sub logged
{
	my ($host, $node, $text) = @_;
	my $address = $node->address;

	return scalar(() = slurp_file($host->logfile) =~ /redlock node \Q$address: $text\E$/mg);
}

# ---- connections that break during a write ----

SKIP:
{
	my $faults = PostgreSQL::Test::Utils::tempdir();
	my $library = preload('faults') // skip 'no C compiler', 1;
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAULTS_DIR} = $faults;

	# only the nodes' retries, and a check of the connections each 5 s, wake the broker
	my @nodes = redis_nodes(3);
	my $host = redlock_cluster('broken', nodes => \@nodes, conf => "redlock.node_timeout = '19s'\nredlock.ttl = '60s'");
	my $s = session($host);
	my $broken = sub { return scalar(() = slurp_file($host->logfile) =~ /redlock node \S+: could not write: /g); };

	wait_until(sub { phase() > 0.2 && phase() < 0.8 }, 'the nodes have been checked');
	append_to_file("$faults/no-write", '');
	$s->send("SELECT redlock_acquire('a', wait => '3 s', scope => 'session') > 0");
	wait_until(sub { $broken->() >= 3 }, 'no node can be written to');
	unlink "$faults/no-write";
	is($s->result->{out}, 't', 'they are connected to again, and asked, before the next check');
	$s->quit;
	$host->stop;
	$_->kill9 foreach @nodes;
}

# ---- connections that break while a session tries ----

{
	my @nodes = redis_nodes(3);
	my $host = redlock_cluster('tries', nodes => \@nodes, conf => "redlock.node_timeout = '20s'\nredlock.ttl = '60s'");
	my ($s, $look) = map { session($host) } 1, 2;
	my $connects = sub { return $look->query('SELECT min(connects) FROM redlock_stat_nodes'); };
	my @kill = map { IO::Socket::INET->new($_->address) or die "connect: $@" } @nodes;

	repeat($s, "PERFORM redlock_try('a')");
	foreach my $round (1 .. 10)
	{
		my $before = $connects->();

		syswrite $_, "CLIENT KILL TYPE normal SKIPME yes\r\n" foreach @kill;
		wait_until(sub { $connects->() > $before }, 'all connections have broken, and are replaced');
	}
	end_repeats($host);
	is($s->result->{err}, '', 'no try has failed meanwhile');
	$_->quit foreach $s, $look;
	$host->stop;
	$_->kill9 foreach @nodes;
}

# ---- connections that died before a renewal ----

{
	my @redis = redis_nodes(3);
	my @nodes = map { HostileNode->new($_) } @redis;
	my $host = redlock_cluster('renewal', nodes => \@nodes, conf => "redlock.node_timeout = '4s'\nredlock.ttl = '13500ms'");
	my $s = session($host);
	my $stats = sub { return $host->safe_psql('postgres', "SELECT $_[0] FROM redlock_stats"); };

	# the renewal is due 4.5 s later, its answer a second after that: between the same two checks
	wait_until(sub { phase() > 1 && phase() < 1.5 }, 'it is some time before the next check');
	$s->query("SELECT redlock_acquire('a', scope => 'session')");
	wait_until(sub { phase() < 0.3 }, 'that has come');
	$_->obey([ '^NOW', 'hang' ]) foreach @nodes;
	wait_until(sub { 3 == grep { $_->hung >= 1 } @nodes }, 'all connections are dead');
	$_->obey foreach @nodes;
	wait_until(sub { $stats->('renewed') eq '1' }, 'the lock is renewed');
	is($stats->('unrenewed + lost'), '0', 'at the first try');
	$s->quit;
	$host->stop;
	$_->stop foreach @nodes;
	$_->kill9 foreach @redis;
}

# ---- one node of three is slow, or silent ----

{
	my @redis = redis_nodes(3);
	my $node = HostileNode->new($redis[2]);
	my $host = redlock_cluster('slow', nodes => [ @redis[ 0, 1 ], $node ], conf => "redlock.node_timeout = '4s'\nredlock.ttl = '60s'");
	my $s = session($host);
	my $anew = 'no answer within 1000 ms; connecting again';
	my $failed = 'no answer within 4000 ms';
	my $address = $node->address;
	my $rtt = sub { return $host->safe_psql('postgres', "SELECT rtt_us / 1e6 FROM redlock_nodes WHERE node = '$address'"); };

	# the node answers all the time, each answer late
	my $work = "PERFORM redlock_acquire('a'); PERFORM pg_sleep(0.02)";
	repeat($s, $work);
	foreach my $delay (0.5, 1.0, 1.5, 2.0)
	{
		$node->obey([ '.', 'delay', $delay ]);
		wait_until(sub { $rtt->() > $delay }, "a node answers after $delay s");
	}
	is(logged($host, $node, $anew) + logged($host, $node, $failed), 0, 'its connection is kept');

	end_repeats($host);
	is($s->result->{err}, '', 'the others suffice');
	$node->obey;
	wait_until(sub { $s->query("SELECT redlock_acquire('b')"); $rtt->() < 0.5 }, 'it is quick again');

	# the node answers nothing any more on this connection, and no EVALSHA on a new connection
	$node->obey([ '^NOW', 'hang' ], [ '^EVALSHA', 'hang' ]);
	wait_until(sub { $node->hung >= 1 }, 'its connection is dead');
	$s->query('DROP TABLE end_repeats');
	repeat($s, $work);
	wait_until(sub { logged($host, $node, $anew) + logged($host, $node, $failed) >= 1 }, 'which is seen');
	is(logged($host, $node, $anew), 1, 'its connection is replaced');
	wait_until(sub { logged($host, $node, $anew) + logged($host, $node, $failed) >= 3 }, 'it goes on');
	is(logged($host, $node, $anew), 1, 'once');

	# a new broker does not doubt the node yet, and learns that the time is too short to connect
	$node->obey([ '^EVALSHA', 'hang' ], [ '^SCRIPT', 'delay', 1.6 ]);
	my $before = logged($host, $node, $failed);
	replace_broker($host);
	wait_until(sub { logged($host, $node, $anew) + logged($host, $node, $failed) > $before + 1 }, 'the node is silent');
	is(logged($host, $node, $anew), 1, 'it is not connected to in vain');
	end_repeats($host);
	is($s->result->{err}, '', 'the others suffice again');
	$s->quit;
	$host->stop;
}

# ---- a node that closes each connection ----

{
	my @redis = redis_nodes(2);
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64) or die "listen: $@";
	my $host = redlock_cluster('closed', nodes => [ @redis, 'redis://127.0.0.1:' . $listener->sockport ], ready => 2);

	close $listener->accept;
	my $began = time;
	close $listener->accept for 1 .. 10;
	# pauses double from 50 ms up to 1 s, less up to half: 3.3 s at least
	cmp_ok(time - $began, '>', 2, 'is connected to less and less often');
	$host->stop;
}

# ---- a node that closes each connection after the handshake ----

{
	my @redis = map { redis_node() } 1 .. 5;
	my ($late, $early) = map { HostileNode->new($_) } @redis[ 3, 4 ];
	my $host = redlock_cluster('late', nodes => [ @redis[ 0 .. 2 ], $late, $early ], conf => "redlock.ttl = '60s'");
	my $s = session($host);
	my $handshakes = sub { $_[0]->cli(qw(INFO commandstats)) =~ /^cmdstat_config(?:\|get)?:calls=(\d+)/m ? $1 : 0 };

	# a node that closes in the handshake is the measure
	repeat($s, "PERFORM redlock_acquire('a'); PERFORM pg_sleep(0.01)");
	$late->obey([ '^EVALSHA', 'close' ]);
	$early->obey([ '^(?:NO )?EVALSHA', 'close' ]);
	my @before = map { $handshakes->($_) } @redis[ 3, 4 ];
	wait_until(sub { $handshakes->($redis[4]) >= $before[1] + 20 }, 'a node that closes in the handshake is tried again and again');
	my $late_ones = $handshakes->($redis[3]) - $before[0];
	my $early_ones = $handshakes->($redis[4]) - $before[1];
	note("$late_ones and $early_ones handshakes");
	cmp_ok($late_ones, '>', 5, 'so is a node that closes at the first command after it');
	cmp_ok($late_ones, '<', 2 * $early_ones, '... not much more often');
	end_repeats($host);
	$s->result;
	$s->quit;
	$host->stop;
}

# ---- one error for the commands of several locks, some of them executed ----

{
	my @redis = redis_nodes(3);
	my $node = HostileNode->new($redis[2]);
	my $host = redlock_cluster('call', nodes => [ @redis[ 0, 1 ], $node ], conf => "redlock.ttl = '60s'");
	$node->obey([ '^EVALSHA', 'instead', '-ERR of one of them\r\n' ]);
	my @s = map { session($host) } 'a', 'b';
	my $broker = broker_pid($host);

	kill 'STOP', $broker;
	$s[$_]->send("SELECT redlock_try('lock $_', scope => 'session')") foreach 0, 1;
	wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'") eq '2' }, 'two ask for a lock');
	kill 'CONT', $broker;
	is($_->result->{out}, 't', 'the other nodes grant the lock') foreach @s;
	wait_until(sub { key_count("redlock:lock $_", $redis[2]) == 1 }, 'the key is there') foreach 0, 1;
	$node->obey;
	$s[$_]->query("SELECT redlock_release('lock $_')") foreach 0, 1;
	wait_until(sub { key_count("redlock:lock $_", @redis) == 0 }, 'and is deleted', 20) foreach 0, 1;
	$_->quit foreach @s;
	$host->stop;
}

done_testing();

# Nodes that answer garbage, nothing, a byte a second, a gigabyte, or lies: as a
# minority they are in nobody's way, as a majority they are an error that names
# each of them and why.
#
# Protects from: a broker that fails, hangs, runs in circles or grows without
# bound by what a node sends (invariant 15); a call that does not end, or leaves
# keys on the good nodes (7, 11); control characters of strangers on a terminal.
#
# Nodes 1 to 3 are correct until they are told otherwise; see HostileNode.
#
# Takes over a minute.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @redis   = redis_nodes(5);
my @hostile = map { HostileNode->new($_) } @redis[ 0 .. 2 ];
my @nodes   = (@hostile, @redis[ 3, 4 ]);
my @good    = @redis[ 3, 4 ];

# what a broker may need, much more than it should
my $memory_kb = 48 * 1024;
my $log_bytes = 1024 * 1024;

my $conf = "redlock.ttl = '60s'\nredlock.max_ttl = '60s'\n"
  . "log_statement = none\nlog_min_messages = log";
my $host_a    = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b    = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $session_a = session($host_a);
my $session_b = session($host_b);
$_->query("SET client_min_messages = error") for $session_a, $session_b;
my @brokers   = (broker_pid($host_a), broker_pid($host_b));
my $number    = 0;

# the script that takes and gives back locks, and what reads and writes the marker
my $script   = '^(EVALSHA|EVAL loaded)';
my $marker   = '^(GET|EVAL other)';
my $greeting = '^(INFO|PING)';
my $garbage  = join '', map { sprintf '\x%02x', $_ * 37 % 256 } 1 .. 255;
my $ugly_line = '\x01\x1b[31m\x07\x7f\x9b\xe2\x80\xae\xc3( %s%n%d \ \'; --';
my $ugly     = '\0' . $ugly_line;

# What redlock_nodes shows for a node.
sub reason
{
	my ($session, $node) = @_;
	my $address = $node->address;
	return $session->query(
		"SELECT coalesce(last_error, '') FROM redlock_nodes WHERE node = '$address'");
}

# Has the nodes turn hostile, and waits until both hosts show why; for that
# somebody has to ask them for something.
sub turn_hostile
{
	my ($what, $nodes, $modes) = @_;

	foreach my $i (0 .. $#$nodes)
	{
		$nodes->[$i]->obey(@{ $modes->[$i]{rules} });
	}
	foreach my $session ($session_a, $session_b)
	{
		my @seen;

		wait_until(
			sub {
				$session->run("SELECT redlock_try('seen', ttl => '1 s')");
				@seen = map { reason($session, $_) } @$nodes;
				return @$nodes == grep { $seen[$_] =~ $modes->[$_]{reason} } 0 .. $#$nodes;
			},
			"$what: the view says why",
			20) or diag("it says: @seen");
		unlike("@seen", qr/[^ -~]/, "$what: in printable characters");
	}
	return;
}

# Waits for connections that were made since.
sub turn_good
{
	my @before = map { $_->query('SELECT clock_timestamp()') } $session_a, $session_b;
	my $nodes  = join ', ', map { "'" . $_->address . "'" } @hostile;

	$_->reform foreach @hostile;
	foreach my $session ($session_a, $session_b)
	{
		my $before = shift @before;

		wait_until(
			sub {
				$session->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready'"
					  . " AND (since > '$before' OR node NOT IN ($nodes))") == 5;
			},
			'all nodes are ready')
		  or diag($session->query('SELECT * FROM redlock_nodes'));
	}
	return;
}

# With a minority that is hostile all works, renewals too.
sub works
{
	my ($what) = @_;
	my $job = 'job ' . ++$number;

	$session_a->query('BEGIN');
	is($session_a->run("SELECT redlock_try('$job', ttl => '1500 ms')")->{out},
		't', "$what: A takes a lock");
	my $renewed = $session_a->query('SELECT renewed FROM redlock_stats');
	is($session_b->run("SELECT redlock_try('$job')")->{out}, 'f', "$what: B is refused");
	$session_b->query('BEGIN');
	$session_b->send("SELECT redlock_acquire('$job') > 0");
	wait_until(sub { $session_a->query('SELECT renewed FROM redlock_stats') > $renewed },
		"$what: the lease is renewed", 20);
	ok(!$session_b->done, "$what: B waits");
	is($session_a->run('COMMIT')->{state}, '', "$what: A commits");
	is($session_b->result->{out}, 't', "$what: B gets the lock");
	$session_b->query('COMMIT');
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: the good nodes keep no key", 20);
	return;
}

# Without a majority there is an error in time, which is long before "wait" ends.
sub fails
{
	my ($what, $modes) = @_;
	my $job = 'none ' . ++$number;

	foreach my $call ("redlock_try('$job')", "redlock_acquire('$job')")
	{
		my $result = $session_a->run("SELECT $call");

		is($result->{state}, '08006', "$what: no quorum is a connection failure")
		  or diag("$call: $result->{out} $result->{err}");
		unlike($result->{detail}, qr/[^ -~]/, "$what: the detail is printable");
		foreach my $i (0 .. 2)
		{
			like($result->{detail}, qr/\Q@{[$hostile[$i]->address]}\E: [^;]/,
				"$what: it names node $i");
		}
		like($result->{detail}, $modes->[0]{reason}, "$what: and says why")
		  if $modes->[0]{steady};
	}
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

# What nodes say that lie may be a grant or a refusal, and comes in time.
sub ends
{
	my ($what) = @_;
	my $job = 'lie ' . ++$number;

	foreach my $call ("redlock_try('$job')", "redlock_acquire('$job', wait => '3 s')")
	{
		my $result = $session_a->run("SELECT $call");

		like("$result->{out}$result->{state}",
			qr/^([tf]|[1-9]\d*|08006|40001|55P03)$/,
			"$what: a call ends, with a token if it is granted");
	}
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

# A wait without a quorum ends as any other.
sub can_be_ended
{
	my ($what) = @_;
	my $job = 'ended ' . ++$number;
	my $result = $session_a->run(
		"SET statement_timeout = '100 ms'; SELECT redlock_acquire('$job'); RESET statement_timeout");

	is($result->{state}, '57014', "$what: statement_timeout ends it");
	$session_a->query('RESET statement_timeout');
	$session_a->send("SELECT redlock_acquire('$job')");
	$host_a->poll_query_until('postgres',
		"SELECT EXISTS (SELECT FROM redlock_locks WHERE resource = '$job')");
	kill 'INT', $session_a->pid;
	is($session_a->result->{state}, '57014', "$what: so does a cancel");
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

sub peak_kb
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 : 'inf';
}

sub log_size { return -s $_[0]->logfile; }

my @peak_before;

# One round: node 1 turns hostile, then 2, then 3.  $modes has one, or one for
# each node: rules; reason: what the view must say; steady: the error's detail says
# so as well; slow: it can be ended otherwise; votes: what they say may be a vote.
sub round
{
	my ($what, @modes) = @_;
	@modes = ($modes[0]) x 3 if @modes == 1;

	my $began      = time;
	my @log_before = map { log_size($_) } $host_a, $host_b;

	turn_hostile("$what, one node", [ $hostile[0] ], \@modes);
	is( $session_a->run("SELECT redlock_try('alone', ttl => '1 s')")->{out},
		't', "$what, one node: locks work");
	turn_hostile("$what, two nodes", [ @hostile[ 0, 1 ] ], \@modes);
	works("$what, two nodes");
	turn_hostile("$what, three nodes", \@hostile, \@modes);
	if ($modes[0]{votes})
	{
		ends("$what, three nodes");
	}
	else
	{
		fails("$what, three nodes", \@modes);
	}
	can_be_ended("$what, three nodes") if $modes[0]{slow};
	turn_good();
	is("@{[broker_pid($host_a), broker_pid($host_b)]}", "@brokers", "$what: the brokers live");
	foreach my $i (0, 1)
	{
		my $log = log_size(($host_a, $host_b)[$i]) - $log_before[$i];

		cmp_ok(peak_kb($brokers[$i]) - $peak_before[$i],
			'<', $memory_kb, "$what: the memory of a broker does not grow");
		cmp_ok($log, '<', $log_bytes, "$what: nor does its log");
		note "$what: peak ", peak_kb($brokers[$i]), " kB, log $log bytes";
	}
	note sprintf '%s: %.1f s', $what, time - $began;
	return;
}

works('all nodes good');
@peak_before = map { peak_kb($_) } @brokers;

my %only = map { $_ => 1 } split /,/, $ENV{ONLY} // '';

sub maybe_round { round(@_) if !%only || $only{ $_[0] }; return; }

my $no_answer   = qr/no answer within 500 ms/;
my $no_redis    = qr/does not speak the Redis protocol/;
my $too_much    = qr/more than any reply could have|without being asked/;
my $odd_type    = qr/unexpected type/;
my $odd_answer  = qr/unexpected type|out of all bounds/;

# ---- silence ----

maybe_round('accepts and never answers',
	{ rules => [ [ '.', 'hang' ] ], reason => $no_answer, steady => 1, slow => 1 });
maybe_round('greets and never answers',
	{ rules => [ [ $script, 'hang' ] ], reason => $no_answer, steady => 1, slow => 1 });
maybe_round('drips',
	{ rules => [ [ '.', 'drip', '+OK\r\n' ] ], reason => $no_answer, steady => 1 });
maybe_round('drips its answers',
	{
		rules  => [ [ $script, 'drip', '*1\r\n$16\r\n1234567890123456\r\n' ] ],
		reason => $no_answer,
		steady => 1
	});
maybe_round('closes at once',
	{ rules => [ [ '.', 'close' ] ], reason => qr/closed the connection|reset by peer/ });
maybe_round('closes when asked',
	{ rules => [ [ $script, 'close' ] ], reason => qr/closed the connection|reset by peer/ });

# ---- noise ----

maybe_round('garbage', { rules => [ [ '.', 'say', $garbage ] ], reason => $no_redis });
maybe_round('garbage after the greeting',
	{ rules => [ [ $script, 'say', $garbage ] ], reason => $no_redis });
maybe_round('unasked answers',
	{ rules => [ [ $script, 'add', '+OK\r\n' ] ], reason => qr/without being asked/, votes => 1 },
	{
		rules => [ [ '^NOW', 'say', ':1\r\n' ], [ $script, 'add', '$1\r\n1\r\n' ] ],
		reason => qr/without being asked/
	},
	{ rules => [ [ $script, 'add', '*0\r\n' ] ], reason => qr/without being asked/ });

# ---- a gigabyte ----

maybe_round('a gigabyte in one string',
	{ rules => [ [ '.', 'flood', '$1073741824\r\n', 'x' ] ], reason => $too_much });
maybe_round('a gigabyte for an answer',
	{ rules => [ [ $script, 'flood', '$1073741824\r\n', 'x' ] ], reason => $too_much },
	{ rules => [ [ $script, 'flood', '', ':1\r\n' ] ], reason => $too_much },
	{ rules => [ [ $script, 'flood', '-', 'x' ] ], reason => $too_much });
maybe_round('a gigabyte of elements',
	{
		rules  => [ [ $script, 'flood', '*1000000\r\n', ':1\r\n' ] ],
		reason => qr/$no_answer|$too_much|$no_redis/
	});
maybe_round('a gigabyte of elements unasked',
	{
		rules => [ [ '^NOW', 'flood', '*1000000000\r\n', ':1\r\n' ], [ $script, 'close' ] ],
		reason => qr/$no_answer|$too_much|$no_redis|closed the connection|reset by peer/
	});
maybe_round('arrays in arrays',
	{ rules => [ [ $script, 'flood', '', '*1\r\n' ] ], reason => qr/$no_answer|$too_much|$no_redis/ });

# ---- wrong answers ----

maybe_round('wrong types',
	{
		rules => [
			[
				$script, 'say', '+OK\r\n', '$-1\r\n', '*-1\r\n', '*0\r\n', '$0\r\n\r\n',
				'*2\r\n$1\r\na\r\n:1\r\n', '*3\r\n:1\r\n*1\r\n:1\r\n$-1\r\n', '*1\r\n+OK\r\n', '*1\r\n$-1\r\n',
				'*1\r\n*2\r\n$1\r\na\r\n:1\r\n', '*1\r\n*1\r\n$16\r\n1234567890123456\r\n'
			]
		],
		reason => $odd_type,
		steady => 1
	});
maybe_round('yes',
	{ rules => [ [ $script, 'say', '*1\r\n:1\r\n' ] ], reason => $odd_answer },
	{ rules => [ [ $script, 'say', '*1\r\n$2\r\n-5\r\n' ] ], reason => $odd_answer },
	{ rules => [ [ $script, 'say', '*1\r\n$20\r\n99999999999999999999\r\n' ] ], reason => $odd_answer });
maybe_round('errors 1',
	{ rules => [ [ $script, 'say', '-MOVED 3999 127.0.0.1:6381\r\n' ] ], reason => qr/^MOVED/ },
	{ rules => [ [ $script, 'say', '-LOADING Redis is loading the dataset in memory\r\n' ] ], reason => qr/^LOADING/ },
	{ rules => [ [ $script, 'say', '-READONLY You can\'t write against a read only replica.\r\n' ] ], reason => qr/^READONLY/ });
maybe_round('errors 2',
	{ rules => [ [ $script, 'say', '-OOM command not allowed\r\n' ] ], reason => qr/^OOM/ },
	{ rules => [ [ $script, 'say', '-MISCONF Redis is configured to save RDB snapshots\r\n' ] ], reason => qr/^MISCONF/ },
	{ rules => [ [ $script, 'say', '-BUSY Redis is busy running a script\r\n' ] ], reason => qr/^BUSY/ });
maybe_round('errors 3',
	{ rules => [ [ $script, 'say', '-NOAUTH Authentication required.\r\n' ] ], reason => qr/^NOAUTH/ },
	{ rules => [ [ $script, 'say', '-NOPERM this user has no permissions\r\n' ] ], reason => qr/^NOPERM/ },
	{ rules => [ [ $script, 'say', '-WRONGTYPE Operation against a key\r\n' ] ], reason => qr/^WRONGTYPE/ });
maybe_round('errors 4',
	{ rules => [ [ $script, 'say', '-CLUSTERDOWN The cluster is down\r\n' ] ], reason => qr/^CLUSTERDOWN/ },
	{ rules => [ [ $script, 'say', '-NOSCRIPT No matching script.\r\n' ] ], reason => qr/^NOSCRIPT/ },
	{ rules => [ [ $script, 'say', "-ERR $ugly\\r\\n" ] ], reason => qr/^ERR / });
maybe_round('no script for ever',
	{ rules => [ [ $script, 'say', '-NOSCRIPT No matching script.\r\n' ] ], reason => qr/^NOSCRIPT/ });

# What one node says must not be written to the others if it can't be true.
maybe_round('a counter out of all bounds',
	{
		rules  => [ [ $script, 'say', '*1\r\n$16\r\n9007199254740991\r\n' ] ],
		reason => $odd_answer
	});
maybe_round('a counter of old',
	{ rules => [ [ $script, 'say', '*1\r\n$4\r\n1000\r\n' ] ], reason => $odd_answer, votes => 1 });
maybe_round('no for ever',
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:60000\r\n$7\r\nnobody!\r\n' ] ],
		reason => qr//,
		votes  => 1
	},
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:9223372036854775807\r\n$1\r\n\0\r\n' ] ],
		reason => qr//
	},
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:-9223372036854775808\r\n$0\r\n\r\n' ] ],
		reason => qr//
	});

# ---- refused when they greet ----

my $again = [ '^NOW', 'close' ];
maybe_round('refused 1',
	{ rules => [ $again, [ '^INFO replication', 'edit', 'role:master', 'role:slave' ] ], reason => qr/it is a replica/ },
	{ rules => [ $again, [ $greeting, 'say', "-LOADING $ugly\\r\\n" ] ], reason => qr/^LOADING/ },
	{ rules => [ $again, [ $greeting, 'say', "-NOAUTH $ugly\\r\\n" ] ], reason => qr/^NOAUTH/ });
maybe_round('refused 2',
	{ rules => [ $again, [ $greeting, 'say', '*0\r\n' ] ], reason => qr/has no run_id/ },
	{ rules => [ $again, [ $marker, 'say', "-WRONGTYPE $ugly\\r\\n" ] ], reason => qr/^WRONGTYPE/ },
	{ rules => [ $again, [ '^SCRIPT', 'say', '$3\r\nabc\r\n' ] ], reason => qr/did not load a script/ });
maybe_round('refused 3',
	{ rules => [ $again, [ '^INFO server', 'edit', 'redis_mode:standalone', "redis_mode:$ugly_line" ] ], reason => qr/it runs in .* mode/ },
	{ rules => [ $again, [ '^INFO server', 'edit', 'run_id:', 'run_id:\0' ] ], reason => qr/has no run_id|no uptime/ },
	{ rules => [ $again, [ '^INFO server', 'edit', 'uptime_in_seconds', 'uptime' ] ], reason => qr/no uptime/ });

works('all nodes good again');
$_->quit for $session_a, $session_b;
done_testing();

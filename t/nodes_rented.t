# Nodes that hide whether they keep their grants, with durable=yes or durable=no in redlock.nodes.
# Nodes that lack a command or a right.
#
# Protects from (invariants 1 and 8): a ready node unable to execute a needed command, or a
# refused node without a useful reason; a password in the reason; a durable parameter overruling
# the node's own answer, or ignored without a message; a durable node never voting after its
# starts; a list misread, or a wrong list replacing the list in force.
#
# redlock.max_ttl is long at first, to show each quarantine, and short later, to end each
# quarantine.  t/nodes_quarantine.t tests the length.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $host;
my $log_from = 0;

sub set_nodes
{
	my (@urls) = @_;

	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@urls) . "'");
	$host->reload;
	return;
}

sub node_is
{
	my ($node, $condition) = @_;
	return $host->safe_psql('postgres',
		"SELECT count(*) = 1 FROM redlock_nodes WHERE node = '@{[$node->address]}' AND ($condition)") eq 't';
}

sub wait_for_node
{
	my ($node, $condition, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { node_is($node, $condition) }, $description)
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
	return;
}

# How often the log has this line about the node.
sub told
{
	my ($node, $what) = @_;
	return scalar(() = slurp_file($host->logfile, $log_from) =~ /redlock node \Q@{[$node->address]}\E $what/g);
}

# Starts a new process with the data of the former process.
sub restart
{
	my ($node) = @_;
	my $before = told($node, '(is ready|does not vote)');

	$node->restart;
	wait_until(sub { told($node, '(is ready|does not vote)') > $before }, 'a node restarts');
	return;
}

# ---- the durable parameter, and the node's own answer ----

{
	my @no_config = (conf => [ '--rename-command', 'CONFIG', '' ]);
	my $may_not_ask = redis_node();
	my $hides = HostileNode->new(redis_node());
	my $tells_a_part = sub {
		my $node = HostileNode->new(redis_node(@_));
		$node->obey([ '^CONFIG GET', 'edit', 'no-appendfsync-on-rewrite', 'no-appendfsync-on-rewrote' ]);
		return $node;
	};

	$may_not_ask->cli(qw(ACL SETUSER carol on >secret ~* &* +@all -config));
	$hides->obey([ '^INFO persistence', 'edit', 'aof_enabled', 'aof_allowed' ]);

	# say: the durable parameter; why: reason of the quarantine; wrong: the node contradicts `say`
	my %cases = (
		'no CONFIG, nothing said' => { node => redis_node(@no_config), why => 'it does not answer CONFIG GET' },
		'no CONFIG, yes' => { node => redis_node(@no_config), say => 'yes' },
		'no CONFIG, no' => { node => redis_node(@no_config), say => 'no', why => 'durable=no' },
		'no CONFIG by ACL, yes' => { node => $may_not_ask, url => $may_not_ask->url(user => 'carol', password => 'secret'), say => 'yes' },
		'a part of INFO is hidden, nothing said' => { node => $hides, why => 'its INFO persistence has no aof_enabled' },
		'it says that it keeps all, no' => { node => redis_node(), say => 'no', why => 'durable=no' },
		'it says that it keeps all, yes' => { node => redis_node(), say => 'yes' },
		'it says everysec, yes' => { node => redis_node(conf => [qw(--appendfsync everysec)]), say => 'yes', why => 'its appendfsync is everysec', wrong => 1 },
		'it says no-appendfsync-on-rewrite, yes' =>
		  { node => redis_node(conf => [qw(--no-appendfsync-on-rewrite yes)]), say => 'yes', why => 'its no-appendfsync-on-rewrite is yes', wrong => 1 },
		'it says that it writes nothing, yes' => { node => redis_node(persist => 0), say => 'yes', why => 'its appendonly is no', wrong => 1 },
		'no CONFIG, and it writes nothing, yes' => { node => redis_node(@no_config, persist => 0), say => 'yes' },
		'a part of CONFIG is hidden, it says everysec, yes' =>
		  { node => $tells_a_part->(conf => [qw(--appendfsync everysec)]), say => 'yes', why => 'its appendfsync is everysec', wrong => 1 },
		'a part of CONFIG is hidden, it writes nothing, yes' =>
		  { node => $tells_a_part->(persist => 0), say => 'yes', why => 'its appendonly is no', wrong => 1 },
		'no CONFIG, and it writes nothing, nothing said' => { node => redis_node(@no_config, persist => 0), why => 'its appendonly is no' },
	);
	my $number = keys %cases;
	my @forget = grep { $cases{$_}{why} } sort keys %cases;
	my @keep   = grep { !$cases{$_}{why} } sort keys %cases;
	my $url    = sub {
		my ($case) = @_;
		return ($case->{url} // $case->{node}->url) . ($case->{say} ? "?durable=$case->{say}" : '');
	};

	$host = redlock_cluster('rented',
		nodes => [ map { $url->($cases{$_}) } sort keys %cases ],
		conf  => "redlock.ttl = '2s'",
		ready => scalar @keep);
	foreach my $what (@forget)
	{
		my $why = quotemeta $cases{$what}{why};

		wait_for_node($cases{$what}{node}, "state = 'quarantined' AND quarantine = last_error", "$what: does not vote");
		like($host->safe_psql('postgres', "SELECT quarantine FROM redlock_nodes WHERE node = '@{[$cases{$what}{node}->address]}'"),
			qr/^it restarted at .* and may have forgotten leases: $why$/, "$what: the view says why");
	}
	like(psql_result($host, "SELECT redlock_try('job')")->{detail}, qr/CONFIG GET \(in quarantine/, 'and so does an error');
	is($host->safe_psql('postgres', 'SHOW redlock.nodes'),
		join(', ', map { $url->($cases{$_}) =~ s/carol:secret/***/r } sort keys %cases),
		'SHOW tells what was said of the nodes');

	# a server that has just started judges the nodes in the same way
	$log_from = -s $host->logfile;
	$host->append_conf('postgresql.conf', "redlock.max_ttl = '2s'");
	$host->restart;
	wait_nodes_ready($host, $number);
	foreach my $what (sort keys %cases)
	{
		my ($node, $why) = @{ $cases{$what} }{qw(node why)};

		if ($cases{$what}{wrong})
		{
			ok(node_is($node, "last_error = 'redlock.nodes says durable=yes, but $why'"), "$what: the view says that the parameter does not count");
			is(told($node, "is not durable, although redlock.nodes says so\n.*DETAIL:  The node says: $why\\.\n"), 1, "$what: the log says the same, once");
		}
		else
		{
			ok(node_is($node, 'last_error IS NULL'), "$what: no error");
			is(told($node, 'is not durable'), 0, "$what: no warning");
		}
	}

	# a broker that has known the node for a while decides in the same way
	foreach my $what ('no CONFIG, yes', 'no CONFIG, nothing said', 'it says that it keeps all, no', 'it says everysec, yes')
	{
		my ($node, $why) = @{ $cases{$what} }{qw(node why)};
		my $before = told($node, 'does not vote');

		restart($node);
		is(told($node, 'does not vote') - $before, $why ? 1 : 0, "$what: " . ($why ? 'it does not vote again' : 'it votes at once'));
	}
	is(told($cases{'it says everysec, yes'}{node}, 'is not durable'), 1, 'that its word counts is not told again');
	wait_nodes_ready($host, $number);

	# a reload with another durable parameter does not make another node
	my $s     = session($host);
	my $token = $s->query("SELECT redlock_acquire('held', scope => 'session')");
	my $later = $cases{'no CONFIG, nothing said'};
	my $since = $host->safe_psql('postgres', "SELECT since FROM redlock_nodes WHERE node = '@{[$later->{node}->address]}'");
	$later->{say} = 'yes';
	set_nodes(map { $url->($cases{$_}) } sort keys %cases);
	wait_for_node($later->{node}, "state = 'ready' AND since > '$since'", 'what is said later');
	is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_nodes'), $number, 'is said of the same node');
	is($s->query("SELECT redlock_token('held')"), $token, 'a lock that is held still is');
	is($s->query("SELECT redlock_release('held')"), 't', 'and is released');
	my $before = told($later->{node}, 'does not vote');
	restart($later->{node});
	is(told($later->{node}, 'does not vote'), $before, 'it counts from then on');

	# the broker notices lost data of a durable node, too
	$later->{node}->cli('FLUSHALL');
	# a node gets requests once it has answered a beat
	wait_until(
		sub { $s->query("SELECT redlock_try('job')"); node_is($later->{node}, "state = 'quarantined' AND quarantine ~ 'data was lost'") },
		'a node that lost its data does not vote');

	# ---- wrong lists change nothing ----

	my $nodes = $host->safe_psql('postgres', 'SHOW redlock.nodes');
	my $good  = $later->{node}->url;
	my %wrong = (
		"$good, redis://h?durable=maybe" => 'node 2: durable must be yes or no',
		"$good, redis://h?durable="      => 'node 2: durable must be yes or no',
		"redis://:S3cr3t\@h?durable=yes&durable=yes" => 'node 1: a parameter is given twice',
		"$good, $good?durable=yes"       => 'nodes 1 and 2 are the same server "' . $later->{node}->address . '"',
		"$good redis://h:2 redis://:S3cr3t\@h:3/1?timeout=S3cr3t" => 'node 3: the only parameter is durable=yes or durable=no',
		"unix:///s?db=1&x=1" => 'node 1: the parameters after a socket\'s path are db=number and durable=yes or durable=no',
	);
	foreach my $list (sort keys %wrong)
	{
		my $result = $s->run("ALTER SYSTEM SET redlock.nodes = '$list'");

		is($result->{state}, '22023', "refused: $wrong{$list}");
		is($result->{message}, "invalid value for parameter \"redlock.nodes\": $wrong{$list}", 'with its place');
		set_nodes($list);
		wait_until(sub { slurp_file($host->logfile) =~ /LOG:  invalid value for parameter "redlock.nodes": \Q$wrong{$list}\E\n/ }, 'also at a reload');
		is($s->query('SHOW redlock.nodes'), $nodes, 'the former list stays in force');
	}
	unlike(slurp_file($host->logfile) =~ s/^.*statement:.*//mgir, qr/S3cr3t/, 'the log tells no password but in statements');
	is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_nodes'), $number, 'also for the broker');
	$s->quit;
	$host->stop;
	$_->kill9 foreach map { $_->{node}->can('kill9') ? $_->{node} : () } values %cases;
}

# ---- commands and rights that a node lacks ----

{
	my $named   = 'renamed';
	my $no_lua  = 'renamed, or a server without Lua';
	my $without = sub { return redis_node(conf => [ map { ('--rename-command', $_, '') } @_ ]) };
	my $fake    = sub { my $node = HostileNode->new(redis_node()); $node->obey(@_); return $node };
	my $engine  = '-ERR Could not find scripting engine \'lua\'\r\n';
	my $may_not = sub {
		my ($what, %options) = @_;
		my $node = redis_node();
		$node->cli(qw(ACL SETUSER carol on >S3cr3t ~redlock:* &* +@all), $what);
		return ($node, $node->url(user => 'carol', password => 'S3cr3t', %options));
	};
	my $script_may_not = qr/(NOPERM|ERR) (ACL failure|The user executing the script).*/;
	my $user_may_not   = sub { return qr/NOPERM .*\b$_[0]' command/ };

	# expected reason, node, and its URL unless plain
	my @cases = (
		[ qr/it has no command INFO, which a node needs \($named\)/, $without->('INFO') ],
		[ qr/it has no command EVAL, which a node needs \($no_lua\)/, $without->('EVAL') ],
		[ qr/it has no command EVALSHA, which a node needs \($no_lua\)/, $without->('EVALSHA') ],
		[ qr/it has no command SCRIPT LOAD, which a node needs \($no_lua\)/, $without->('SCRIPT') ],
		[ qr/it is a server without Lua, which a node needs/, $fake->([ '^(EVAL|SCRIPT|NO EVALSHA)', 'say', $engine ]) ],
		[ qr/its INFO server has no run_id/, $fake->([ '^INFO server', 'edit', 'run_id:', 'hidden:' ]) ],
		[ qr/its INFO server has no uptime_in_seconds/, $fake->([ '^INFO server', 'edit', 'uptime_in_s', 'uptime_is_s' ]) ],
		[ qr/its INFO replication has no role/, $fake->([ '^INFO replication', 'say', '$0\r\n\r\n' ]) ],
		[ qr/${\$user_may_not->('evalsha')}; grant \+evalsha/, $may_not->('-evalsha') ],
		[ qr/${\$user_may_not->('eval')}; grant \+eval \+get \+set \+time ~redlock:\?marker/, $may_not->('-eval') ],
		[ qr/$script_may_not; grant \+eval \+get \+set \+time ~redlock:\?marker/, $may_not->('-time') ],
		[ qr/${\$user_may_not->('script\|load')}; grant \+script\|load/, $may_not->('-script|load') ],
		[ qr/${\$user_may_not->('info')}; grant \+info/, $may_not->('-info') ],
		[ qr/${\$user_may_not->('select')}; grant \+select/, $may_not->('-select', db => 3) ],
	);
	my $reasons = sub {
		my ($node, $url) = @{ $_[0] }[ 1, 2 ];
		my $address = $node->address . (($url // '') =~ m{/(\d+)$} ? "/$1" : '');
		return $host->safe_psql('postgres', "SELECT last_error FROM redlock_nodes WHERE node = '$address' AND state = 'refused'");
	};

	$host = redlock_cluster('missing', nodes => [ map { $_->[2] // $_->[1] } @cases ], ready => 0);
	my $s = session($host);
	wait_until(sub { $s->query("SELECT count(*) FROM redlock_nodes WHERE state = 'refused'") == @cases }, 'all are refused')
	  or diag($s->query('TABLE redlock_nodes'));
	foreach my $case (@cases)
	{
		# now and then the broker asks the node again; until the answer the node has another state
		wait_until(sub { $reasons->($case) =~ /^$case->[0]$/ }, "the view says: $case->[0]");
	}
	# the error, too, may meet a node that is being asked again
	my $result;
	wait_until(
		sub {
			$result = $s->run("SELECT redlock_try('job')");
			return !grep { $result->{detail} !~ $_->[0] } @cases;
		},
		'an error says what each of them lacks')
	  or diag($result->{detail});
	is($result->{state}, '08006', 'there is no quorum');

	# a server's error repeats an unknown command with its arguments: here, the password
	my $no_auth = $without->('AUTH');
	set_nodes($no_auth->url(password => 'S3cr3t'));
	wait_for_node($no_auth, "last_error = 'it has no command AUTH, which a node needs ($named)'", 'a node without AUTH');
	my $repeats = $fake->([ '^AUTH', 'say', q{-ERR Unknown or disabled command 'AUTH', with args beginning with: 'S3cr3t'\r\n} ]);
	set_nodes('redis://:S3cr3t@' . $repeats->address);
	wait_for_node($repeats, "last_error = 'it refuses AUTH, and its text, which has the password, is not shown'", 'a node that repeats the password');
	unlike(join('', slurp_file($host->logfile), $s->query('TABLE redlock_nodes')), qr/S3cr3t/, 'nothing tells the password');

	# other answers to AUTH and SELECT
	foreach my $case ([ '^AUTH', q{ERR wrong number of arguments for 'auth' command}, 'carol:S3cr3t@', '', qr/^Remove the user from the URL, or name a server of Redis 6 or later\./ ],
		[ '^SELECT', 'ERR SELECT is not allowed in cluster mode', '', '/1', qr/^Name an independent server in redlock\.nodes/ ])
	{
		my ($command, $error, $user, $db, $hint) = @$case;
		my $node = $fake->([ $command, 'say', "-$error\\r\\n" ]);
		my $result;

		set_nodes("redis://$user" . $node->address . $db);
		wait_until(
			sub {
				$result = $s->run("SELECT redlock_try('job')");
				return index($result->{detail}, $error) > 0;
			},
			"the error says: $error");
		like($result->{hint}, $hint, '... and the hint what to do');
	}

	# renamed commands that only the scripts call
	@cases = map { [ qr/it has no command $_, which a node needs \($named\)/, $without->(split ' ', $_) ] } qw(TIME GET SET PEXPIRE ZADD), 'SETRANGE PTTL DEL';
	set_nodes(map { $_->[1] } @cases);
	foreach my $case (@cases)
	{
		wait_until(sub { $reasons->($case) =~ /^$case->[0]$/ }, "refused: $case->[0]");
	}
	wait_until(
		sub {
			$result = $s->run("SELECT redlock_try('job')");
			return $result->{detail} =~ /$cases[0][0]/;
		},
		'an error says so');
	like($result->{hint}, qr/^Restore the command in the node's configuration, or name another server in redlock\.nodes\./, '... and what to do');

	# a node votes once its user has the right, and the log says so
	my ($node, $url) = $may_not->('-evalsha');
	set_nodes($url);
	wait_for_node($node, "state = 'refused'", 'a node whose user lacks EVALSHA is refused');
	$node->cli(qw(ACL SETUSER carol +evalsha));
	wait_for_node($node, "state = 'ready'", 'until it may');
	wait_until(sub { $s->run("SELECT redlock_try('job')")->{out} eq 't' }, 'and votes, when it has told of other hosts');
	$s->quit;
	$host->stop;
}

done_testing();

# A node whose user lacks a right that docs/how-to/permissions.md lists.
#
# Protects from: a script stopped half way by the node's ACL, leaving a key without an expiry; an
# error not naming the right; a node voting although its user cannot renew or release.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @rights = slurp_file('docs/how-to/permissions.md') =~ /^ACL SETUSER redlock on >secret (.*)$/m ? split(/ /, $1) : die 'no rights';
my @nodes = redis_nodes(3);

sub grant_all_but
{
	my ($right) = @_;

	foreach my $node (@nodes)
	{
		$node->cli(qw(ACL SETUSER limited reset on >secret), grep { $_ ne $right } @rights);
		$node->cli(qw(CLIENT KILL USER limited));
	}
	return;
}

grant_all_but('');
my $host = redlock_cluster(
	'a',
	nodes => [ map { $_->url(user => 'limited', password => 'secret') } @nodes ],
	conf  => "redlock.ttl = '10s'\nredlock.node_timeout = '5s'\nredlock.on_loss = 'error'");
my $s = session($host);
my $number = 0;

sub keys_for_ever
{
	my $script = q{local keys = {} for _, key in ipairs(redis.call('KEYS', '*')) do
		if redis.call('PTTL', key) == -1 and key ~= 'redlock:\0marker' then keys[#keys + 1] = key end end return table.concat(keys, ' ')};
	return join '', map { $_->cli('EVAL', $script, 0) } @nodes;
}

sub all_are
{
	my ($condition, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(sub { $s->query("SELECT count(*) FROM redlock_nodes WHERE $condition") == 3 }, $what)
	  || diag($s->query('TABLE redlock_nodes'));
}

# A node that lacks a right in %each does not vote.  Of the rights in %shared the first reader
# already needs HSET: the error must name HSET.
my %shared = map { $_ => "mode => 'shared'" } qw(hset hget hdel hgetall);
my %each   = map { $_ => 1 } qw(info script|load evalsha eval get set setrange pttl pexpire del time);
my @removed = grep { /^\+/ && !/^\+auth$/ } @rights;

cmp_ok(scalar @removed, '>', 25, 'there are rights');
foreach my $right (@removed)
{
	my ($command) = $right =~ /^\+(.*)$/;
	my $more = $command eq 'exists' ? 'permits => 2' : $shared{$command};
	my $named = $command =~ /^(?:get|time)$/ ? qr/grant .*\+get .*\+time/ : qr/grant .*\Q$right\E\b/;

	# the nodes must make the list of hosts again, too
	$_->cli('EVAL', "for _, key in ipairs(redis.call('KEYS', 'redlock:?hosts*')) do redis.call('DEL', key) end", 0) foreach @nodes;
	grant_all_but($right);
	if ($each{$command})
	{
		all_are(q{state = 'refused' AND last_error LIKE '%; grant %'}, "without $command no node votes");
		like($s->query('SELECT last_error FROM redlock_nodes LIMIT 1'), $named, '... and the view says what to grant');
	}
	elsif (defined $more)
	{
		my $result;

		wait_until(
			sub {
				$result = $s->run("SELECT redlock_try('needs it @{[++$number]}', scope => 'session', $more)");
				$s->run("SELECT redlock_release_all()");
				return $command ne 'hset' || $result->{state} eq '08006' && $result->{detail} =~ $named;
			},
			"without $command such locks are tried")
		  or diag("$result->{state} $result->{detail}");
		wait_until(sub { $s->run("SELECT redlock_try('plain', scope => 'session') AND redlock_release('plain')")->{out} eq 't' },
			'... and other locks work');
	}
	else
	{
		all_are(q{state IN ('ready', 'quarantined')}, "without $command the nodes stay on duty");
	}
	foreach my $arguments ('', ", mode => 'shared'", ', permits => 2')
	{
		my $name = "any " . ++$number;
		$s->run("SELECT redlock_try('$name', scope => 'session'$arguments)") foreach 1, 2;
	}
	$s->run('SELECT redlock_release_all()');
	is(keys_for_ever(), '', 'no key stays for ever');
	grant_all_but('');
	all_are(q{state IN ('ready', 'quarantined')}, '... and all is well with the right');
}

# the user loses the right during a connection: no handshake finds the fault
foreach my $arguments ('', ", mode => 'shared'", ', permits => 2')
{
	my $name = 'live ' . ++$number;

	$s->run("SELECT redlock_try('$name', scope => 'session'$arguments)");
	$_->cli(qw(ACL SETUSER limited -pexpire)) foreach @nodes;
	$s->run("SELECT redlock_try('$name other', scope => 'session'$arguments)");
	$s->run('SELECT redlock_release_all()');
	$_->cli(qw(ACL SETUSER limited +pexpire)) foreach @nodes;
	is(keys_for_ever(), '', "no key stays for ever without PEXPIRE on a live connection$arguments");
}

# a look at a lock, and a forced release, need no further rights
foreach my $right ('', '+exists', '+hgetall', '+type', '+hscan')
{
	my $name = 'seen ' . ++$number;

	all_are(q{state IN ('ready', 'quarantined')}, 'the nodes are on duty');
	wait_until(sub { $s->run("SELECT redlock_try('$name', scope => 'session')")->{out} eq 't' }, 'a lock is held');
	grant_all_but($right);
	all_are(q{state IN ('ready', 'quarantined')}, 'the nodes are on duty');
	is($s->query("SELECT state, pid = pg_backend_pid() FROM redlock_holder('$name')"), 'held|t', "without '$right' the holder is known");
	like($s->query("SELECT redlock_force_release('$name')"), qr/^cluster="a"/, '... and the lock can be released by force');
	$s->run('SELECT redlock_release_all()');
	grant_all_but('');
}

# a note of a run needs no further right; without a right the run goes on
foreach my $right ('', '+hset', '+zadd', '+zrange')
{
	my $name = 'run ' . ++$number;

	all_are(q{state IN ('ready', 'quarantined')}, 'the nodes are on duty');
	grant_all_but($right);
	all_are(q{state IN ('ready', 'quarantined')}, 'the nodes are on duty');
	# a node has closed its connection, and the broker may not have noticed
	wait_until(sub { $s->run("CALL redlock_run('$name', 'SELECT 1', record => true)")->{state} eq '' },
		"without '$right' a run is recorded");
	is(keys_for_ever(), '', '... and no key stays for ever');
	grant_all_but('');
	all_are(q{state IN ('ready', 'quarantined')}, 'the nodes are on duty');
	is($s->query("SELECT status, nodes FROM redlock_last_run('$name')"), $right eq '' ? 'succeeded|3' : '|0', '... with a note only if the user has all rights');
}

$s->quit;
$host->stop;
done_testing();

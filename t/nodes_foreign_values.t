# Strings of other programs under the names of locks: long strings, and strings that look like
# values of redlock_pg.
#
# Protects from: a long value making the broker drop its connections, so that leases are lost and
# calls fail; a text cut inside of a character; a long counter or barrier with the same effect; a
# forced release, refused for a wrong counter, advising to wait for ready nodes; a plain client's
# value taken for a shared lock, and overwritten or deleted.

use strict;
use warnings;
use utf8;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '20s'\nredlock.node_timeout = '10s'\nredlock.on_loss = 'error'");
my ($admin, $s) = map { session($host) } 1, 2;

# Runs a script with the arguments on each node; returns the answers.
sub on_nodes
{
	my ($script, @arguments) = @_;
	return map { $_->cli('EVAL', $script, 0, @arguments) } @nodes;
}

# A stranger writes the text $count times under a key; '|' in the key stands for NUL.
sub put_long
{
	my ($key, $text, $count) = @_;

	utf8::encode($text);
	on_nodes(q{redis.call('SET', string.gsub(ARGV[1], '|', '\0'), string.rep(ARGV[2], ARGV[3]))}, $key, $text, $count);
	return;
}


sub errors_of_nodes { return $admin->query('SELECT count(last_error) FROM redlock_nodes'); }
sub renewals        { return $admin->query('SELECT renewed FROM redlock_stats'); }

sub is_held
{
	my ($name) = @_;
	return $admin->query("SELECT count(*) FROM redlock_locks WHERE resource = '$name' AND state = 'held'") == 1;
}

# When the host last connected to its nodes.
sub connected_since { return $admin->query("SELECT string_agg(since::text, ' ' ORDER BY node) FROM redlock_nodes"); }

my $since = connected_since();

# ---- long values ----

# each character has another length in UTF-8; no limit is a multiple of all lengths
my %character = (2 => 'ä', 3 => '€', 4 => '😀');

foreach my $case ([ 100_000, 2 ], [ 99_999, 3 ], [ 5_000_000, 4 ])
{
	my ($size, $bytes) = @$case;
	my $letter = $character{$bytes};
	my $holder = session($host);
	my %failed = (try => 0, unrelated => 0);
	my $rounds = 0;

	put_long("redlock:big $size", $letter, $size / $bytes);
	my $token = $holder->query("SELECT redlock_acquire('other $size', scope => 'session', ttl => '3 s')");
	my $enough = renewals() + 4;

	# meanwhile the broker renews the lease with the short ttl many times
	while ($rounds < 20 || (is_held("other $size") && renewals() < $enough))
	{
		$failed{try}++ if $s->run("SELECT redlock_try('big $size')")->{out} ne 'f';
		$failed{unrelated}++ if $s->run("SELECT redlock_try('unrelated $rounds')")->{out} ne 't';
		$rounds++;
	}
	is($failed{try}, 0, "$size bytes: each of $rounds tries is refused");
	is($failed{unrelated}, 0, "$size bytes: each of $rounds tries for other locks is granted");
	is($holder->run("SELECT redlock_check('other $size') > '0' AND redlock_token('other $size') = $token")->{out}, 't',
		"$size bytes: another lease with a short ttl is not lost");
	is(connected_since(), $since, "$size bytes: the host stays connected to each node");
	is(errors_of_nodes(), 0, "$size bytes: no node has an error");
	foreach my $more ("mode => 'shared'", 'permits => 2', 'ttl => \'1 s\'')
	{
		is($s->query("SELECT redlock_try('big $size', $more)"), 'f', "$size bytes: a try with $more is refused");
	}
	is($s->query("SELECT redlock_try_all(ARRAY['free $size', 'big $size'])"), 'f', "$size bytes: so is one for several");
	is($s->query("SELECT redlock_try('free $size')"), 't', 'which leaves nothing behind');
	$holder->quit;
	$s->query('SELECT redlock_release_all()');

	# waiters see the beginning of the value
	my $result = $s->run("SELECT redlock_acquire('big $size', wait => '200 ms')");
	utf8::decode($result->{detail});
	is($result->{state}, '55P03', "$size bytes: a wait ends");
	like($result->{detail}, qr/^The lock was granted to: $letter{30,}\.$/, "$size bytes: its error shows whole characters");
	$s->send("SELECT redlock_acquire('big $size', scope => 'session')");
	my $waits = "FROM redlock_locks WHERE resource = 'big $size' AND state = 'waiting'";
	wait_until(sub { $admin->query("SELECT count(held_by) $waits") == 1 }, "$size bytes: a session waits");
	my $encoded = $letter;
	utf8::encode($encoded);
	is($admin->query("SELECT held_by ~ '^($encoded)+\$' AND octet_length(held_by) BETWEEN 100 AND 255 $waits"),
		't', "$size bytes: the view shows whole characters");
	$_->cli('DEL', "redlock:big $size") foreach @nodes;
	is($s->result->{state}, '', "$size bytes: it gets the lock when the value is deleted");
	$s->query('SELECT redlock_release_all()');
}

# ---- a text that is not UTF-8 ----

on_nodes(q{redis.call('SET', ARGV[1], string.rep('\255\1a', 40000))}, 'redlock:raw');
like($s->run("SELECT redlock_acquire('raw', wait => '100 ms')")->{detail}, qr/^The lock was granted to: .*a.*\.$/, 'bytes that are no text are shown somehow');
is($admin->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND last_error IS NULL"), 3, 'and are no error of a node');

# ---- long counters and barriers ----

{
	my $digits = 100_000;
	my ($holder, $kept) = map { session($host) } 1, 2;
	my $enough = renewals() + 4;

	# A renewed lease no longer depends on its counter.
	$holder->query("SELECT redlock_acquire('beside', scope => 'session', ttl => '3 s')");
	$kept->query("SELECT redlock_acquire('grown', scope => 'session', ttl => '3 s')");
	wait_until(sub { renewals() >= $enough }, 'leases are renewed');
	put_long('redlock:grown|token', '9', $digits);

	put_long('redlock:counted|token', '9', $digits);
	my $result = $s->run("SELECT redlock_try('counted')");
	is($result->{state}, '08006', "a counter of $digits digits: no lock");
	like($result->{detail}, qr/the counter is not a number/, 'the nodes say why');
	put_long('redlock:worded|token', 'no number', 1);
	on_nodes(q{redis.call('RPUSH', ARGV[1] .. '\0token', 'a')}, 'redlock:listed');
	foreach my $name (qw(worded listed))
	{
		$result = $s->run("SELECT redlock_force_release('$name')");
		like($result->{detail}, qr/the counter is not a number|WRONGTYPE/, "$name: a forced release fails");
		like($result->{hint}, qr/^These nodes are ready, .* delete the counter/, 'and the hint says what to do');
		on_nodes(q{redis.call('DEL', ARGV[1] .. '\0token')}, "redlock:$name");
		is($s->run("SELECT redlock_force_release('$name') IS NULL")->{out}, 't', 'after that it succeeds');
	}

	# the barrier names the waiter, with a very long name
	put_long('redlock:barred|barrier', '9', $digits);
	is($s->query("SELECT redlock_try('barred', mode => 'shared')"), 't', "a barrier of $digits digits, without a waiter");
	on_nodes(
		q{redis.call('SET', ARGV[1] .. '\0barrier', redis.call('GET', ARGV[1] .. '\0token') .. ':' .. string.rep('w', ARGV[2]))},
		'redlock:barred', $digits);
	is($s->query("SELECT redlock_try('barred', mode => 'shared')"), 'f', "a barrier of $digits bytes holds readers back");
	is($s->run("SELECT redlock_acquire('barred', mode => 'shared', wait => '1 s')")->{state}, '55P03', 'they wait in vain');
	is($s->query("SELECT redlock_try('barred')"), 't', 'the forged barrier does not hold a writer back');

	$enough = renewals() + 6;
	wait_until(sub { renewals() >= $enough }, 'leases are renewed beside it');
	is($kept->run("SELECT redlock_check('grown') > '0' AND redlock_release('grown')")->{out}, 't',
		'a lock whose counter is made long is renewed and released');
	is($holder->run("SELECT redlock_check('beside') > '0'")->{out}, 't', 'another lease with a short ttl is not lost');
	$_->quit foreach $holder, $kept;
}
is(connected_since(), $since, 'the host stays connected to each node');

# ---- values that look like shared locks ----

my $like = '0123456789abcdef0123456789abcdef:000000008:0000000000000001= host=stranger';
my @values;

# a wrong character at each place: A or g for a digit, - or 0 for another character
foreach my $at (0 .. 60)
{
	my $was = substr $like, $at, 1;

	foreach my $wrong ($was =~ /[\da-f]/ ? qw(A g) : qw(- 0))
	{
		push @values, substr($like, 0, $at) . $wrong . substr($like, $at + 1);
	}
}
# a value of ours with a longer or shorter head, and cut at each place
push @values, "0$like", substr($like, 1), map { substr $like, 0, $_ } 1 .. 60;
# only the separators are right
push @values, ('.' x 42) . ':' . ('.' x 16) . '= stranger', ('.' x 32) . ':' . ('.' x 9) . ':' . ('.' x 16) . '= stranger', uc $like,
  (' ' x 42) . ':' . ('0' x 16) . '=';

my $number = @values;
my $put    = q{for i = 2, #ARGV do redis.call('SET', ARGV[1] .. ' ' .. i - 1, ARGV[i]) end};
my $same   = q{
	local n = 0
	for i = 2, #ARGV do
		local key = ARGV[1] .. ' ' .. i - 1
		n = n + (redis.call('GET', key) == ARGV[i] and redis.call('PTTL', key) == -1 and 1 or 0)
	end
	return n};

# Each value is still as the stranger wrote it.
sub unchanged
{
	my ($name, $after) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(' ', on_nodes($same, "redlock:$name", @values)), "$number $number $number", "$after: no value was changed");
	return;
}

sub granted
{
	my ($sql) = @_;
	return $s->query("SELECT count(*) FROM generate_series(1, $number) n WHERE $sql");
}

on_nodes($put, 'redlock:like', @values);
foreach my $mode (qw(shared exclusive))
{
	is(granted("redlock_try('like ' || n, mode => '$mode')"), 0, "$number values like ours refuse a try, $mode");
	unchanged('like', "$mode tries");
	is($s->run("SELECT redlock_acquire('like 1', wait => '200 ms', mode => '$mode')")->{state}, '55P03', "a wait ends, $mode");
	unchanged('like', "a wait, $mode");
}
is(granted("redlock_try('like ' || n, permits => 3)"), 0, 'they refuse a permit');
unchanged('like', 'tries for permits');

# The host held the locks before, so the nodes have the host's readers.
foreach my $mode (qw(shared exclusive))
{
	my $holder = session($host);

	is($holder->query("SELECT count(redlock_acquire('$mode ' || n, scope => 'session', mode => '$mode', ttl => '60 s')) FROM generate_series(1, $number) n"),
		$number, "locks that are held, $mode");
	on_nodes($put, "redlock:$mode", @values);
	$holder->query('SELECT redlock_release_all()');
	wait_until(sub { $admin->query('SELECT releasing FROM redlock_stats') == 0 }, 'are released');
	unchanged($mode, "releases, $mode");

	is($holder->query("SELECT count(redlock_acquire('lost $mode ' || n, scope => 'session', mode => '$mode', ttl => '4 s')) FROM generate_series(1, $number) n"),
		$number, "locks that are renewed, $mode");
	on_nodes($put, "redlock:lost $mode", @values);
	wait_until(
		sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource LIKE 'lost $mode %' AND state = 'lost'") == $number },
		'are lost, as the nodes have other values');
	unchanged("lost $mode", "renewals, $mode");
	$holder->quit;
	wait_until(sub { $admin->query('SELECT releasing FROM redlock_stats') == 0 }, 'and end');
	unchanged("lost $mode", "releases of lost locks, $mode");
}
is($admin->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready'"), 3, 'all nodes are ready');

done_testing();

# The SQL examples of README.md and docs/, run as readers run them.  The table of settings in the
# documents agrees with the server.
#
# Protects from: failing or warning examples; examples needing an object that no earlier example
# made, or making an object of another document again; a leader election with two leaders, or
# without a leader after the leader has gone; wrong defaults and bounds.
#
# All documents share one database, README.md first.  Each example has its own psql.

use strict;
use warnings;

use File::Basename;
use IPC::Run;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $root = dirname(__FILE__) . '/..';
my @documents = ('README.md', map { s/^\Q$root\E\///r } sort glob "$root/docs/*.md $root/docs/*/*.md");
my @nodes = redis_nodes(3);
my %host = map {
	$_ => redlock_cluster($_, nodes => \@nodes, conf => "cluster_name = '$_'\nredlock.ttl = '2s'")
} qw(a b);

# Runs an example to its first error.  Returns its standard error, or 'status N' if psql failed.
sub run_example
{
	my ($sql) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[
			$host{a}->installed_command('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=1',
			'-d', $host{a}->connstr('mydb'), '-f', '-'
		],
		'<', \$sql, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$err .= 'status ' . ($? >> 8) if $?;
	return $err;
}

# Locks kept by hold_at_least must not delay later examples.
sub free_locks
{
	foreach my $node (@nodes)
	{
		$node->cli('EVAL', <<'LUA', 0);
for _, key in ipairs(redis.call('KEYS', 'redlock:*')) do
	if not string.find(key, '%z') then redis.call('DEL', key) end
end
LUA
	}
	return;
}

# ---- all examples ----

# The schema stands in for pg_cron; t/guest_cron.t runs a job with pg_cron.
$host{a}->safe_psql('postgres', 'CREATE DATABASE mydb');
$host{a}->safe_psql('mydb', <<'SQL');
CREATE SCHEMA cron;
CREATE TABLE cron.job (jobname text, schedule text, command text);
CREATE FUNCTION cron.schedule(text, text, text) RETURNS void
LANGUAGE sql AS 'INSERT INTO cron.job VALUES ($1, $2, $3)';
SQL

my $ran = 0;
foreach my $document (@documents)
{
	foreach my $example (sql_examples("$root/$document"))
	{
		unlike(run_example($example->{sql}),
			qr/(?:ERROR|FATAL|WARNING):|skipped|status|not found/,
			"$document, line $example->{line}: $example->{heading}");
		free_locks();
		$ran++;
	}
}
foreach my $command (split /\n/, $host{a}->safe_psql('mydb', 'SELECT command FROM cron.job'))
{
	unlike(run_example($command), qr/(?:ERROR|FATAL|WARNING):|skipped|status/, 'what they schedule');
	free_locks();
}
cmp_ok($ran, '>', 40, 'and these are not few');

# ---- settings ----

my %context = (
	user => qr/^at once, any user$/,
	superuser => qr/^at once, superusers/,
	sighup => qr/^reload$/,
	postmaster => qr/^restart$/);
my %ms = (ms => 1, s => 1000, min => 60 * 1000, d => 24 * 60 * 60 * 1000);

# Returns the value in the unit of the setting.
sub plain_value
{
	my ($text, $unit) = @_;

	return '' if $text eq 'empty';
	return $text =~ /^(\d+) (ms|s|d)$/ ? $1 * $ms{$2} / $ms{$unit} : $text =~ s/`//gr;
}

my @rows = slurp_file("$root/docs/reference/settings.md") =~ /^\| (`redlock\.\w+` \|.*) \|$/mg;
cmp_ok(scalar @rows, '>', 5, 'the reference has settings');
foreach my $row (@rows)
{
	my ($name, $default, $bounds, $effect) = map { s/`(redlock\.\w+)`/$1/r } split / \| /, $row;
	my ($boot, $min, $max, $values, $context, $unit) = split /\|/,
	  $host{a}->safe_psql('postgres',
		"SELECT boot_val, min_val, max_val, array_to_string(enumvals, ', '), context, unit"
		  . " FROM pg_settings WHERE name = '$name'");

	is(plain_value($default, $unit), $boot, "$name: its default");
	like($effect, $context{$context}, '... when it takes effect');
	if ($min ne '')
	{
		is(join(' to ', map { plain_value($_, $unit) } split / to /, $bounds), "$min to $max", '... its bounds');
	}
	elsif ($values ne '')
	{
		is(join(', ', sort split /, /, plain_value($bounds)), join(', ', sort split /, /, $values),
			'... its values');
	}
}

# ---- leader election ----

my ($tables, $script) =
  map { $_->{sql} } sql_examples("$root/docs/how-to/leader-election.md");
my $long_script = $script =~ s/term => '2 s'/term => '1 d', pause => '10 ms'/r;
isnt($long_script, $script, 'a script that leads for a while');

foreach my $cluster (values %host)
{
	$cluster->safe_psql('postgres', $tables);
}

sub has_led
{
	my ($name) = @_;
	return $host{$name}->safe_psql('postgres', 'SELECT count(*) > 0 FROM leadership') eq 't';
}

# Returns the tokens of both hosts' rounds, by time.  The hosts share the clock of this machine.
sub tokens
{
	my %round;

	foreach my $cluster (values %host)
	{
		my $rounds = $cluster->safe_psql('postgres',
			'SELECT extract(epoch FROM round_at) * 1000000, token FROM leadership');
		push @{ $round{ $_->[0] } }, $_->[1] foreach map { [ split /\|/ ] } split /\n/, $rounds;
	}
	return map { @{ $round{$_} } } sort { $a <=> $b } keys %round;
}

sub in_order
{
	my ($description) = @_;
	my ($last, $wrong) = (0, 0);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $token (tokens())
	{
		$wrong++ if $token < $last;
		$last = $token;
	}
	ok($last > 0, 'there were rounds');
	is($wrong, 0, $description);
	$_->safe_psql('postgres', 'TRUNCATE leadership') foreach values %host;
	return;
}

# both hosts run the script unchanged
my %candidate = map { $_ => session($host{$_}) } qw(a b);
$candidate{$_}->send($script) foreach qw(a b);
foreach my $name (qw(a b))
{
	is($candidate{$name}->result->{state}, '', "host $name has led, and stepped down");
	ok(has_led($name), "... and done its work");
}
in_order('no round of one is within the term of the other');

# the leader's session ends
$candidate{a}->send($long_script);
wait_until(sub { has_led('a') }, 'host a leads');
$candidate{b}->send($long_script);
wait_until(
	sub {
		$host{b}->safe_psql('postgres',
			"SELECT count(*) FROM redlock_locks WHERE state = 'waiting' AND held_by ~ 'pid='") eq '1';
	},
	'host b waits');
ok(!has_led('b'), 'and does not lead');
$host{a}->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $candidate{a}->pid . ')');
wait_until(sub { has_led('b') }, 'host b leads when the session of the leader was ended');
$candidate{a}->quit;
in_order('and no round of one is within the term of the other');

# the leader's server crashes
my $successor = session($host{a});
$successor->send($long_script);
$host{b}->stop('immediate');
wait_until(sub { has_led('a') }, 'host a leads when the server of the leader has crashed');
$candidate{b}->quit;
$host{b}->start;
in_order('and no round of one is within the term of the other');

$host{a}->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $successor->pid . ')');
$successor->quit;

done_testing();

# Each function, procedure, view and setting of the extension, with hostile arguments of all types,
# in random order and in four sessions at a time.  FUZZ_SEED=N repeats the calls of a seed;
# FUZZ_CALLS=N makes more calls.
#
# Protects from: an argument, or an order of calls, that ends a server process, fails an assertion,
# or raises an internal error; an error with an SQLSTATE that docs/reference/errors.md does not
# list; a session or a server that takes no locks after many errors.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $seed  = $ENV{FUZZ_SEED}  // int(rand(1_000_000_000));
my $calls = $ENV{FUZZ_CALLS} // 800;

diag("FUZZ_SEED=$seed");
srand($seed);

my $host = redlock_cluster('a', nodes => ['local'], conf => <<CONF);
log_error_verbosity = verbose
redlock.max_locks = 64
restart_after_crash = off
CONF
my $broker = broker_pid($host);
my $limit  = "SET statement_timeout = '100 ms'";

my %documented = map { $_ => 1 } documented_states();
# Errors about the text around a call: in a failed transaction, about savepoints, prepared
# transactions and types, in the commands of redlock_run below; a trigger function as a call.
my %others = (
	'' => [qw(25P02 3B001 42704)],
	'redlock_run(_all)?\(' => [qw(22012 42601)],
	'(_merge|grants_change)\(' => [qw(39P01 42804)]);

# ---- values ----

my @names = map { "'$_'" } qw(a b c d e f);
my @intervals = ("'0'", "'1 us'", "'-1 us'", "'20 ms'", "'5 s'", "'1 min'", "'23 h'", "'1 month -30 days'", "'-1 s'",
	"'178000000 years'", "'-178000000 years'", "'2147483647 months'", "'-2147483648 months'",
	"'2147483647 days'", "'9223372036854.775807 s'", "'-9223372036854.775808 s'");
push @intervals, "'infinity'", "'-infinity'" if $host->pg_version >= 17;

my %values = (
	text => [ "''", "repeat('x', 255)", "repeat('x', 256)", "repeat('x', 1000000)", "repeat(U&'\\00E4', 127)",
		"repeat(U&'\\+01F512', 64)", "E'a\\nLOG:  b'", "E'\\x01'", "E'a\\x011'", "E'a\\x7f'", "U&'\\009B'", "' '",
		"'%n%s%d'", "''';--'", "'\\'", "'*'", "'NaN'", "'infinity'", "'2026-01-01'", "'{a,b}'" ],
	interval      => \@intervals,
	regrole       => [ "'postgres'", "'pg_monitor'", "'0'", 4294967295, "'nobody'" ],
	redlock_scope => [ map { "'$_'" } qw(transaction call session detached) ],
	boolean       => [qw(true false)],
	integer       => [ qw(0 1 1 2 3 1000 1001 -1 2147483647), "'-2147483648'" ],
	bigint        => [
		0, 1, -1, 9223372036854775807, "'-9223372036854775808'", 9007199254740992,
		'(SELECT max(token) FROM redlock_locks)', "redlock_token('a')" ],
	'text[]' => [ "'{}'", "'{a,b}'", "'{b,a}'", "'{c,d,e,f}'", "'{a,a}'", "'{a,NULL}'", "'{NULL}'", "'{\"\"}'", "'{{a,b},{c,d}}'", "'{{{a}}}'",
		"'[5:6]={a,b}'", "'[-3:-2]={a,b}'", "array_fill('a'::text, ARRAY[64])", "ARRAY(SELECT 'n' || i FROM generate_series(1, 64) i)",
		"ARRAY(SELECT 'n' || i FROM generate_series(1, 65) i)", "ARRAY(SELECT 'n' || i FROM generate_series(1, 100000) i)",
		"ARRAY[repeat('x', 1000000)]", "ARRAY[E'a\\n', 'b']" ],
);
my %named = (
	mode    => [ "'exclusive'", "'shared'", "'shared'", "'SHARED'", "'update'" ],
	command => [ "'SELECT 1'", "'SELECT 1/0'", "'nonsense'", "'COMMIT'", "'SELECT pg_sleep(10)'", "'VACUUM'", "''", "'BEGIN'",
		"'SELECT redlock_release_all()'", "'SELECT redlock_acquire(''a'')'", "repeat(' ', 1000000)", "'CALL redlock_run(''b'', ''SELECT 1'')'" ],
	command_timeout => ["'1 s'"],
);
my @of_settings = ("''", 0, 1, -1, 2147483647, "'1 ms'", "'1 s'", "'1000 d'", "'NaN'", "'on'", "'warn'", "'cancel'", "'session, call'", "E'a\\n'", 'DEFAULT', 'DEFAULT');
# no function has a parameter of these types
my @foreign = ("'NaN'::float8", "'infinity'::date", "'-infinity'::timestamptz", "'{}'::jsonb", "B'101'", "ROW(1, 2)", "'NaN'::numeric", "'{1,NULL}'::int[]");

sub one_of { return $_[ int(rand(@_)) ]; }

sub value_of
{
	my ($name, $type) = @_;

	return 'NULL' if rand() < 0.06;
	return one_of(@foreign) if rand() < 0.02;
	# mostly good values: a call should get past its first check
	return one_of(@names) if $type eq 'text' && !$named{$name} && rand() < 0.85;
	return one_of("'0'", "'20 ms'", "'5 s'") . '::interval' if $type eq 'interval' && rand() < 0.6;
	my $of = $named{$name} // $values{$type} // BAIL_OUT("no values of type $type for $name");
	return one_of(@$of) . ($type eq 'integer' || $type eq 'boolean' ? '' : "::$type");
}

# ---- calls ----

# name, kind, parameters "name type", the last of which have defaults
sub functions
{
	return map {
		my ($oid, $name, $kind, $defaults, $parameters) = split /\|/;
		{ name => $name, kind => $kind, defaults => $defaults, parameters => [ split /,/, $parameters // '' ] }
	} split /\n/, $host->safe_psql('postgres', <<'SQL');
SELECT p.oid, proname, prokind, pronargdefaults,
       (SELECT string_agg(proargnames[i] || ' ' || format_type(proargtypes[i - 1], NULL), ',' ORDER BY i) FROM generate_series(1, pronargs) i)
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'redlock_pg' ORDER BY p.oid::regprocedure::text
SQL
}

my @functions = functions();
my @views = split /\n/, $host->safe_psql('postgres', "SELECT viewname FROM pg_views WHERE viewname LIKE 'redlock%' ORDER BY 1");
my @settings = split /\n/, $host->safe_psql('postgres', "SELECT name FROM pg_settings WHERE name LIKE 'redlock.%' ORDER BY 1");
cmp_ok(@functions, '>=', 35, 'the functions of the extension');

sub call
{
	my $function = one_of(@functions);
	my $required = @{ $function->{parameters} } - $function->{defaults};
	my @arguments;

	foreach my $i (0 .. $#{ $function->{parameters} })
	{
		my ($name, $type) = split / /, $function->{parameters}[$i], 2;
		push @arguments, "$name => " . value_of($name, $type) if $i < $required || rand() < 0.15;
	}
	my $called = "$function->{name}(" . join(', ', @arguments) . ')';
	return "CALL $called" if $function->{kind} eq 'p';
	return rand() < 0.5 ? "SELECT count(*) FROM $called" : "SELECT length(($called)::text)";
}

# A call, alone or with more calls in a transaction; sometimes another command.
sub statement
{
	my $dice = rand();

	return one_of("DISCARD ALL; $limit", 'SELECT redlock_release_all()', "RESET ALL; $limit") if $dice < 0.06;
	return 'SELECT count(*) FROM ' . one_of(@views) if $dice < 0.1;
	return 'SET ' . one_of(@settings) . ' = ' . one_of(@of_settings) if $dice < 0.14;
	return call() if $dice < 0.6;
	my $prepared = int(rand(1_000_000_000)); # several sessions may prepare at a time
	return join '; ', 'BEGIN', call(), (rand() < 0.5 ? 'SAVEPOINT s' : ()), call(), (rand() < 0.3 ? 'ROLLBACK TO s' : ()),
	  call(), one_of('COMMIT', 'COMMIT', 'ROLLBACK', "PREPARE TRANSACTION '$prepared'; ROLLBACK PREPARED '$prepared'");
}

# ---- results ----

sub documented_states
{
	return map { (split /(?<!\\)\|/)[2] =~ /\b([0-9A-Z]{5})\b/g }
	  grep { /^\| `/ } split /\n/, slurp_file('docs/reference/errors.md');
}

my (%seen, @wrong, $good);

sub look_at
{
	my ($sql, $result) = @_;
	my %known = (%documented, map { $sql =~ /$_/ ? map({ $_ => 1 } @{ $others{$_} }) : () } keys %others);

	push @wrong, "the session ended: $sql" if $result->{dead};
	$good++ if $result->{state} eq '';
	while ($result->{err} =~ /^.*?(?:ERROR|FATAL|PANIC|WARNING):  ([0-9A-Z]{5}): (.*)/mg)
	{
		$seen{$1}++;
		push @wrong, "$1 $2: $sql" unless $known{$1};
	}
	return;
}

$host->safe_psql('postgres', 'CREATE ROLE guest LOGIN');
my @sessions = map { session($host) } 1 .. 3;
{
	local $ENV{PGUSER} = 'guest';
	push @sessions, session($host);
}
$_->query($limit) foreach @sessions;
for (my $called = 0; $called < $calls && !grep({ $_->{dead} } @sessions); $called += @sessions)
{
	my @sql = map { statement() } @sessions;

	$sessions[$_]->send($sql[$_]) foreach 0 .. $#sessions;
	look_at($sql[$_], $sessions[$_]->result) foreach 0 .. $#sessions;
}

is(join("\n", @wrong[ 0 .. ($#wrong < 9 ? $#wrong : 9) ]), '', "FUZZ_SEED=$seed: each error has an SQLSTATE of docs/reference/errors.md, and no session ended");
note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
cmp_ok($good, '>', $calls / 20, 'calls succeed, too');
cmp_ok(scalar keys %seen, '>', 10, 'and fail in many ways');
is(broker_pid($host), $broker, 'the broker has not ended');
unlike(slurp_file($host->logfile), qr/TRAP:|PANIC|terminated by signal|: XX\d\d\d:/, 'no process died, and no error is an internal error');

# ---- afterwards ----

foreach my $session (@sessions)
{
	is($session->run("ROLLBACK; DISCARD ALL; SELECT redlock_try('after ' || pg_backend_pid())")->{out}, 't', 'a session still takes locks');
}

done_testing();

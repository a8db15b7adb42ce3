# One name in databases of several encodings.
#
# Protects from: a name meaning another lock in another database; a view showing a name in changed
# bytes, so that a search misses the lock; a view failing in a database whose encoding lacks a
# letter of a name; a role's name in another encoding making an operator's call fail, or hiding the
# message of a run from the role.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(1);
my $host  = redlock_cluster('host', nodes => \@nodes, conf => "redlock.ttl = '60s'");

# How each encoding writes e with an acute accent and the Japanese "go", in hexadecimal digits, if
# the encoding has the letter.
my %db = (
	utf8   => { encoding => 'UTF8',      e => 'c3a9',   go => 'e8aa9e' },
	latin1 => { encoding => 'LATIN1',    e => 'e9' },
	koi8   => { encoding => 'KOI8R' },
	euc_jp => { encoding => 'EUC_JP',    e => '8fabb1', go => 'b8ec' },
	jis04  => { encoding => 'EUC_JIS_2004', e => 'a9df', go => 'b8ec' },
	ascii  => { encoding => 'SQL_ASCII', e => 'c3a9',   go => 'e8aa9e' },
);
foreach my $name (sort keys %db)
{
	$host->safe_psql('postgres',
		"CREATE DATABASE $name TEMPLATE template0 ENCODING '$db{$name}{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
	my $s = $db{$name}{session} = session($host, dbname => $name);
	# bytes as they are stored, whatever the client's encoding
	$s->query('CREATE EXTENSION redlock_pg');
	$s->query(q{CREATE FUNCTION bytes(hex text) RETURNS text LANGUAGE sql AS $$
		SELECT convert_from(decode(hex, 'hex'), getdatabaseencoding()) $$});
}

sub shown
{
	my ($name) = @_;
	return $db{$name}{session}->query(
		"SELECT encode(convert_to(resource, getdatabaseencoding()), 'hex') FROM redlock_locks WHERE state = 'held' AND resource LIKE 'n%'");
}

# each database whose encoding has the letter takes the lock
foreach my $letter ('e', 'go')
{
	my $utf8 = $db{utf8}{$letter};
	foreach my $taker (grep { $db{$_}{$letter} } sort keys %db)
	{
		my $s     = $db{$taker}{session};
		my $arg   = "bytes('6e$db{$taker}{$letter}')";
		my $first = $s->run("SELECT redlock_try($arg, scope => 'session')");

		is($first->{out}, 't', "$letter: taken in $taker");
		is($nodes[0]->cli('EXISTS', "redlock:n" . pack('H*', $utf8)), '1', "$letter: its key is in UTF-8");
		foreach my $reader (sort keys %db)
		{
			my $here = $db{$reader}{$letter};
			# "n" and the letter; or "n" and the letter's bytes in UTF-8, escaped
			my $expected = '6e' . ($here // unpack('H*', $utf8 =~ s/(..)/\\x$1/gr));

			is(shown($reader), $expected, "$letter: taken in $taker, shown in $reader");
			next unless $here;
			is( $db{$reader}{session}
				  ->query("SELECT count(*) FROM redlock_locks WHERE resource = bytes('6e$here') AND state = 'held'"),
				1, "$letter: taken in $taker, found in $reader");
			is($db{$reader}{session}->query("SELECT redlock_try(bytes('6e$here'))"),
				'f', "$letter: taken in $taker, the same lock in $reader") unless $reader eq $taker;
		}
		is($s->query("SELECT redlock_release($arg)"), 't', "$letter: released in $taker");
		$host->poll_query_until('utf8', 'SELECT count(*) = 0 FROM redlock_locks');
	}
}

# Letters inside and outside of the encoding, in a name of nearly the greatest length.
my $mixed = '6e' . ('c3a9' x 60) . ('f09f9492' x 30) . 'c3a9' . '78';
my $s = $db{utf8}{session};
$s->query("SELECT redlock_try(bytes('$mixed'), scope => 'session')");
is(shown('latin1'), '6e' . ('e9' x 60) . (unpack('H*', '\xf0\x9f\x94\x92') x 30) . 'e9' . '78',
	'a long name, of which LATIN1 knows some letters');
is(shown('ascii'), $mixed, 'and in SQL_ASCII as it is');
is(shown('utf8'), $mixed, 'and in UTF8');
$s->query('SELECT redlock_release_all()');

# two letters in Unicode, one in EUC_JIS_2004
$s->query("SELECT redlock_try(bytes('6ee3818be3829a'), scope => 'session')");
is(shown('jis04'), '6ea4f7', 'two code points that are one letter');
$s->query('SELECT redlock_release_all()');

# SQL_ASCII has no letters.  The name means the same lock in other databases, so its bytes must be
# valid UTF-8.
my $result = $db{ascii}{session}->run("SELECT redlock_try(bytes('e9'))");
is($result->{state}, '22021', 'bytes that are no UTF-8 are no name');

# The name of a role is in the encoding of the database where the role was created.  Conversion for
# a client would fail.
my %role;
foreach my $name ('72', '73')
{
	my $r = $db{latin1}{session};
	$r->query("DO \$\$ BEGIN EXECUTE format('CREATE ROLE %I', bytes('${name}e9')); END \$\$");
	$role{$name} = $r->query("SELECT oid FROM pg_roles WHERE rolname = bytes('${name}e9')");
}
my $become = sub { return "SELECT set_config('session_authorization', rolname, false) IS NOT NULL FROM pg_roles WHERE oid = $_[0]" };
$s->query('GRANT EXECUTE ON FUNCTION redlock_ask_release, redlock_force_release TO PUBLIC');
$s->query("SET redlock.max_new_names_per_hour = 0; " . $become->($role{73}));
$s->run("SELECT redlock_try('new')");
$s->query('RESET SESSION AUTHORIZATION; RESET redlock.max_new_names_per_hour; ' . $become->($role{72}));
$s->query("SET client_encoding = 'LATIN1'; SET client_min_messages = log");
$s->query("SELECT redlock_acquire('own', scope => 'detached', hold_at_most => '1 min')");
foreach my $call ('redlock_ask_release', 'redlock_force_release')
{
	$result = $s->run("SELECT $call('own') IS NULL");
	is($result->{out}, 'f', "$call by a role with such a name");
}
$s->run("CALL redlock_run('job', 'SELECT 1/0', record => true)");
wait_until(sub { $s->query("SELECT message FROM redlock_last_run('job')") eq 'division by zero' }, 'such a role reads the message of its own run');
$s->query("SELECT redlock_acquire('other', scope => 'detached', hold_at_most => '1 min')");
$s->query('RESET client_min_messages; RESET SESSION AUTHORIZATION; CREATE ROLE weak; SET ROLE weak');
$result = $s->run("SELECT redlock_release('other', 1)");
is("$result->{state} $result->{detail}", '42501 The detached lock belongs to role "r\xe9".', 'an error names its lock');
$s->query('RESET ROLE');
like($s->run("SELECT finding FROM redlock_diagnose() WHERE subject = 'new names'")->{out}, qr/^Role "s\\xe9" was refused/, 'redlock_diagnose names such a role');

$_->{session}->quit foreach values %db;
done_testing();

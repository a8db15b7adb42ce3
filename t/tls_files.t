# Sessions do not read the files of redlock.tls_..., also in a build without TLS.
#
# Protects from: a file that was correct when the setting was made, and is broken now, for example
# between two files of a program renewing certificates.  The file must not fail statements without
# locks: PostgreSQL sets all settings again in each parallel worker.  And from a file so large that
# the broker would be busy for seconds (invariant 15).
#
# t/tls.t tests how the broker uses the files.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $dir  = PostgreSQL::Test::Utils::tempdir();
my %file = (ca => 'CERTIFICATE', cert => 'CERTIFICATE', key => 'PRIVATE KEY');

foreach my $which (sort keys %file)
{
	append_to_file("$dir/$which", "-----BEGIN $file{$which}-----\n");
	chmod 0600, "$dir/$which" or die $!;
}

my $host = redlock_cluster('a',
	nodes => [redis_node()],
	conf  => join '', map { "redlock.tls_${_}_file = '$dir/$_'\n" } sort keys %file);
my $s = session($host);
my $force = $s->query(
	"SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')");

$s->query("SET $force = on");
$s->query('CREATE TABLE numbers AS SELECT generate_series(1, 10) AS n');

# A statement without locks works in a parallel worker.
sub statements_work
{
	my ($what) = @_;
	my $result = $s->run('SELECT sum(n) FROM numbers');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{out}, '55', "$what: a parallel worker works") or diag($result->{err});
	is($s->query("SELECT redlock_try('job')"), 't', "$what: locks work");
	return;
}

like($s->query('EXPLAIN SELECT sum(n) FROM numbers'), qr/Workers Planned/, 'there is a parallel worker');
statements_work('all is in order');
foreach my $which (sort keys %file)
{
	rename "$dir/$which", "$dir/$which.old" or die $!;
	statements_work("$which: no file any more");
	mkdir "$dir/$which" or die $!;
	statements_work("$which: a directory");
	is($s->query("SHOW redlock.tls_${which}_file"), "$dir/$which", "$which: the setting stays");
	rmdir "$dir/$which" or die $!;
	rename "$dir/$which.old", "$dir/$which" or die $!;
}
statements_work('all is in order again');

append_to_file("$dir/large", "-----BEGIN CERTIFICATE-----\n" . 'x' x 2_000_000);
my $large = $s->run("ALTER SYSTEM SET redlock.tls_ca_file = '$dir/large'");
is($large->{state}, '22023', 'a large file is refused');
is($large->{detail}, qq(File "$dir/large" is too large.), 'which is told');

$s->quit;
done_testing();

# Real drivers pass a list of names, a text and an interval; see test/drivers/README.md.
#
# Protects from: a list becoming one name, so that two sessions hold overlapping lists; names
# changing on the way into an array; a documented call failing in a driver.

use strict;
use warnings;

use IPC::Run;
use RedlockTest;
use Test::More;

my $host = redlock_cluster('a', nodes => [ redis_nodes(3) ], conf => "listen_addresses = '127.0.0.1'");

# pgx allows its simple protocol in this encoding only
$host->safe_psql('postgres', "CREATE DATABASE utf8 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
$host->safe_psql('utf8', 'CREATE EXTENSION redlock_pg');

# redlock_acquire with a list.  The answer depends on the type that the driver gives the list:
# 22023 for a text, 42883 for an array, or the driver refuses.  No list is ever a lock.
my %list_is = (
	psycopg         => { server => '22023', client => '22023' },
	asyncpg         => { prepared => 'client' },
	'node-postgres' => { unnamed => '22023', named => '22023' },
	pgx             => {
		cache_statement => 'client',
		cache_describe  => 'client',
		describe_exec   => 'client',
		exec            => '22023',
		simple_protocol => '22023'
	},
	jdbc => { extended => '42883', simple => '22023' });
my %case_is = (acquire_all => '2', held => '2', try_all => '1', odd => '5', wait => '1');

foreach my $driver (sort keys %list_is)
{
	my ($out, $err) = ('', '');

	local $ENV{PEERS_BUILD_DIR} = ($ENV{TMP} // '/nowhere') . '/drivers';
	local $ENV{LC_ALL} = 'C.UTF-8';
  SKIP:
	{
		my $install = "test/drivers/$driver/install";
		skip "$driver is not built here", 1 if !-d "$ENV{PEERS_BUILD_DIR}" || system("$install >/dev/null 2>&1") != 0;

		my $done = IPC::Run::run([ "test/drivers/$driver/run", '127.0.0.1', $host->port, scalar getpwuid($>), 'utf8' ],
			'<', \undef, '>', \$out, '2>', \$err);
		ok($done, "$driver: the program ends well") or diag($err);
		my %expected;
		foreach my $mode (keys %{ $list_is{$driver} })
		{
			$expected{"$mode $_"} = $list_is{$driver}{$mode} foreach qw(acquire try);
			$expected{"$mode $_"} = $case_is{$_} foreach keys %case_is;
			$expected{"$mode tuple"} = '22023' if $driver eq 'psycopg'; # psycopg sends a row
		}
		my %seen = map { my ($mode, $case, $outcome) = split /\t/; ("$mode $case" => $outcome) } split /\n/, $out;
		is_deeply([ map { "$_ $seen{$_}" } sort keys %seen ], [ map { "$_ $expected{$_}" } sort keys %expected ],
			"$driver: all calls do what they should")
		  or diag($out);
	}
}

done_testing();

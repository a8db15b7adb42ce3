#!/usr/bin/perl
#
# A build against a missing or too old server, or with a wrong setting, stops with one line that
# names the fault.
#
# Protects from: pages of compiler errors that hide the cause; a build without TLS by a typing
# error; an installation without redlock-exec.

use strict;
use warnings;

use Test::More;

# options and jobs of the make that runs this test
delete @ENV{qw(MAKEFLAGS MFLAGS)};

# as if pg_config belonged to an older server
foreach my $version (qw(9.6 10 13 14))
{
	my $output = `make -n MAJORVERSION=$version 2>&1 >/dev/null`;

	isnt($?, 0, "the build for PostgreSQL $version stops");
	like($output, qr/\A.*redlock_pg needs PostgreSQL 15 or later; .* is that of $version\b.*\n\z/,
		'with one line');
}
is(system('make -n MAJORVERSION=15 clean >/dev/null 2>&1'), 0, 'that for 15 does not');

is(`make -n with_tls=Yes clean 2>&1 >/dev/null` =~ s/^Makefile:\d+: //r, qq(*** with_tls is yes or no, not "Yes".  Stop.\n),
	'TLS is wanted or not');
is(system('make -n with_tls=no clean >/dev/null 2>&1'), 0, 'it need not be');

is(`make -n PG_CONFIG=/nowhere/pg_config 2>&1 >/dev/null` =~ s/^(?!Makefile).*\n//gmr =~ s/^Makefile:\d+: //r,
	"*** /nowhere/pg_config is not there, or fails: name one by PG_CONFIG=....  Stop.\n", 'without a server nothing is made');

my $installed = qx(make -n install DESTDIR=/somewhere 2>&1);
my ($program) = $installed =~ m{exec/redlock-exec '(/somewhere/\S+/redlock-exec)'};
ok($program, 'the program is installed');
like(qx(make -n uninstall DESTDIR=/somewhere 2>&1), qr/^rm -f '\Q$program\E'$/m, 'and removed');

done_testing();

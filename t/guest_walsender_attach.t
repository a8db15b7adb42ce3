# A replication connection can't attach to a detached lock.
#
# Protects from: a fast shutdown without an end. The broker waits for commits of attached
# transactions; the server ends walsenders, whose commits may wait for a standby, after the broker.

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $host = redlock_cluster('a', nodes => ['local'], conf => "redlock.ttl = '60s'",
	init => { allows_streaming => 1 });
my $token = $host->safe_psql('postgres', "SELECT redlock_acquire('d', scope => 'detached', hold_at_most => '10 min')");
my ($out, $err) = ('', '');

$host->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$host->reload;
my $walsender = IPC::Run::start(
	[ 'psql', '-X', '-d', $host->connstr('postgres') . ' replication=database',
		'-c', 'BEGIN', '-c', "SELECT redlock_attach('d', $token)", '-c', 'CREATE TABLE work (n int)', '-c', 'COMMIT' ],
	'<', \undef, '>', \$out, '2>', \$err);
wait_until(sub { $walsender->pump_nb; $err =~ /redlocks/
	  || $host->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") }, 'it fails, or its commit waits');
like($err, qr/redlocks can't be used in a replication connection/, 'a walsender is refused');
$ENV{PGCTLTIMEOUT} = 60;
ok($host->stop('fast', fail_ok => 1), 'the server stops');
$walsender->finish;
done_testing();
